"""What a pod is given so that it sees its share of the GPUs and no more: files, mounts, variables and device files.

    Injection          the whole, as data; each runtime carries it out in its own way
    build_injection    (allocations, enforcement, host) -> Injection: a pure function, the same for processes,
                       containers and Kubernetes

Paths are those inside the pod. The image is not changed. A file of the image that we need as well
(/etc/ld.so.preload) is merged by the runtime, because only the runtime can read it.

    /usr/local/gpushare/libgpushare.so   the sharing library, read-only
    /etc/ld.so.preload                   names it; a variable would be lost in `env -i`
    /run/gpushare/limits                 the pod's limits, read-only
    /run/gpushare/ledger                 what its processes hold: one file per pod, on a tmpfs of the host
    /run/gpushare/gate/<uuid>            who may use the GPU now; only where compute time is shared by leases
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.gpu.fractions import ComputeMode, Enforcement, GpuAllocation
from aliquot.gpu.ledger import LEDGER_BYTES
from aliquot.gpu.limits_file import render_limits
from aliquot.units import GPU, MIB

LIBRARY = "/usr/local/gpushare/libgpushare.so"
PRELOAD = "/etc/ld.so.preload"
LIMITS = "/run/gpushare/limits"
LEDGER = "/run/gpushare/ledger"
GATES = "/run/gpushare/gate"
MPS = "/run/gpushare/mps"
# Every program that uses a GPU opens these; the GPUs themselves are /dev/nvidia0 and so on.
COMMON_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps")
# The size that the library expects; see native/gpushare/README.md.
GATE_BYTES = 16384
# Without graphics, video and display: their libraries bypass the entry points that the sharing library intercepts.
_CAPABILITIES = "compute,utility"


@dataclass(frozen=True, slots=True)
class File:
    """A file with this text, read-only in the pod."""

    path: str
    text: str
    executable: bool = False
    # A file of the image at the same path is kept, and the text is appended to a copy of it.
    append: bool = False
    # Path on the host, for files that are rewritten while the pod runs; empty: the runtime chooses.
    source: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file of the host."""

    path: str
    source: str
    read_only: bool = True
    # A missing file is created with this many zero bytes, writable for everyone; 0: the file must exist.
    create_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CgroupLimit:
    """Bytes that the driver itself grants a control group on one GPU."""

    uuid: str
    # Guaranteed, and at most.
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Injection:
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[File, ...] = ()
    mounts: tuple[Mount, ...] = ()
    # Device files of the host, by path.
    devices: tuple[str, ...] = ()
    # Folders of `files` that come first on the PATH.
    path_dirs: tuple[str, ...] = ()
    # Used instead of files and mounts where the runtime cannot mount: works for cooperative programs only.
    fallback_environment: Mapping[str, str] = field(default_factory=dict)
    # Whether the runtime must check, before the pod's command runs, that programs in the pod load the library.
    requires_library: bool = False
    # Set on the pod's own control group before its command runs, where the driver enforces limits.
    cgroup_limits: tuple[CgroupLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Where the injected files are on the host."""

    library: str
    # Holds this pod's limits file and ledger.
    pod_dir: str
    # Holds the gate files, one per GPU.
    gates_dir: str
    # Pipe directory of the GPU's MPS daemon; empty where the pod does not use MPS.
    mps_dir: str = ""


def build_injection(
    allocations: Sequence[GpuAllocation], enforcement: Enforcement, host: HostPaths | None = None
) -> Injection:
    """What a pod with these GPUs is given; without any, the variables that hide every GPU.

    `host` may be None only where no GPU is shared: the pod has whole GPUs, or none.
    """
    uuids = [gpu.uuid for gpu in allocations]
    device_files = (*(gpu.device_file for gpu in allocations if gpu.device_file), *COMMON_DEVICES)
    devices = device_files if allocations else ()
    environment = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids) or "void",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),  # empty hides them all
        "RUNAI_NUM_OF_GPUS": _gpu_count(sum(gpu.milli for gpu in allocations)),
    }
    shared = [gpu for gpu in allocations if gpu.is_shared]
    if not shared or enforcement is Enforcement.NONE:
        return Injection(environment, devices=devices)
    assert host is not None, "a GPU fraction needs the library"
    leased = [gpu for gpu in shared if gpu.mode.is_leased]
    # The driver does not limit managed memory, so the library is loaded for that even where the driver enforces.
    mounts = [Mount(LIBRARY, host.library), _writable(LEDGER, f"{host.pod_dir}/ledger", LEDGER_BYTES)]
    mounts += [_writable(f"{GATES}/{gpu.uuid}", f"{host.gates_dir}/{gpu.uuid}", GATE_BYTES) for gpu in leased]
    if host.mps_dir:
        mounts.append(Mount(MPS, host.mps_dir, read_only=False))
        environment |= {"CUDA_MPS_PIPE_DIRECTORY": MPS} | mps_share(shared[0])
    return Injection(
        environment=environment | {"NVIDIA_DRIVER_CAPABILITIES": _CAPABILITIES},
        files=(
            File(PRELOAD, LIBRARY + "\n", append=True),
            File(LIMITS, render_limits(allocations, enforcement), source=f"{host.pod_dir}/limits"),
        ),
        mounts=tuple(mounts),
        devices=devices,
        fallback_environment=_fallback_environment(shared[0], host),
        requires_library=True,
        cgroup_limits=tuple(map(_cgroup_limit, shared)) if enforcement is Enforcement.CGROUP else (),
    )


def mps_share(gpu: GpuAllocation) -> dict[str, str]:
    """The variable that limits the pod's share of the GPU's compute under MPS."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * gpu.milli / GPU:g}"}


def preload_text(image_text: str, injected_text: str) -> str:
    """The image's own ld.so.preload followed by our lines; a line that is there already is not added twice."""
    missing = [line for line in injected_text.splitlines() if line not in image_text.split()]
    return "".join(line + "\n" for line in [*image_text.splitlines(), *missing])


def _cgroup_limit(gpu: GpuAllocation) -> CgroupLimit:
    return CgroupLimit(gpu.uuid, gpu.guaranteed_mib * MIB, gpu.limit_mib * MIB)


def _writable(path: str, source: str, size: int) -> Mount:
    return Mount(path, source, read_only=False, create_bytes=size)


def _fallback_environment(gpu: GpuAllocation, host: HostPaths) -> dict[str, str]:
    """For one GPU only: variables cannot tell several apart."""
    mps = {"CUDA_MPS_PIPE_DIRECTORY": host.mps_dir} if host.mps_dir else {}
    return mps | {
        "LD_PRELOAD": host.library,
        "GPUSHARE_LIMIT_MIB": str(gpu.limit_mib),
        "GPUSHARE_LEDGER": f"{host.pod_dir}/ledger",
        "GPUSHARE_WEIGHT": str(gpu.milli),
        "GPUSHARE_MODE": (gpu.mode if gpu.mode.is_leased else ComputeMode.TIMESHARING).value,
        "GPUSHARE_GATE": host.gates_dir,
        "GPUSHARE_TENANT": gpu.pod_uid,
        "GPUSHARE_CONTEXT_MIB": str(gpu.context_mib),
    }


def _gpu_count(milli: int) -> str:
    return f"{milli / 1000:g}"
