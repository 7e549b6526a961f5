"""What a pod is given so that it sees its part of the GPUs and no more: files, mounts, variables and device files.

    Injection    the whole, as data; each runtime carries it out in its own way
    injected     (slices, backend, host) -> Injection: one pure function, the same for processes, containers, Kubernetes

Paths are those inside the pod. The image never knows: nothing in it is changed, and a file of its own that we need
(/etc/ld.so.preload) is merged by the runtime, which alone can read it.

    /usr/local/gpushare/libgpushare.so   the sharing library, read-only
    /etc/ld.so.preload                   names it; not a variable, which `env -i` would lose
    /run/gpushare/limits                 what it may have, read-only
    /run/gpushare/ledger                 what its processes have, one file per pod, on a tmpfs of the host
    /run/gpushare/gate/<uuid>            whose turn it is on the GPU; only where compute is shared by leases
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.gpu.fractions import Backend, DeviceShareLimit, Mode, limits_text
from aliquot.units import GPU, MIB

LIBRARY = "/usr/local/gpushare/libgpushare.so"
PRELOAD = "/etc/ld.so.preload"
LIMITS = "/run/gpushare/limits"
LEDGER = "/run/gpushare/ledger"
GATES = "/run/gpushare/gate"
MPS = "/run/gpushare/mps"
# Every program that uses a GPU opens these; the cards themselves are /dev/nvidia0 and so on.
COMMON_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps")
# As the library wants them; see native/gpushare/README.md.
LEDGER_BYTES, GATE_BYTES = 131072, 16384
# Without graphics, video and display: their libraries do not pass through the entry points that the library watches.
_CAPABILITIES = "compute,utility"


@dataclass(frozen=True, slots=True)
class File:
    """A file with this text, read-only in the pod."""

    place: str
    text: str
    executable: bool = False
    # A file of the image at the same place is kept, and the text added to a copy.
    append: bool = False
    # Where on the host it is kept, for those that are written anew while the pod runs; else the runtime's choice.
    source: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file of the host."""

    place: str
    source: str
    read_only: bool = True
    # Made with this many zero bytes, for everybody to write, where it is missing; 0: it must be there.
    zeros: int = 0


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """What the driver itself grants a control group on one GPU; bytes."""

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
    # Folders among the places of `files` that come first on the PATH.
    programs: tuple[str, ...] = ()
    # Instead of files and mounts, where the runtime can mount nothing: a help to honest programs, not a fence.
    unfenced: Mapping[str, str] = field(default_factory=dict)
    # Whether a program must have loaded the library before the pod's own may run.
    fenced: bool = False
    # Set on the pod's own control group before its program runs, where the driver keeps limits.
    group_limits: tuple[GroupLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """Where the parts are on the host."""

    library: str
    # Of this pod's limits and ledger.
    folder: str
    # Of gate files, one per GPU.
    gates: str
    # By which the pod reaches the MPS daemon of its GPU; empty where it does not.
    mps: str = ""


def injected(slices: Sequence[DeviceShareLimit], backend: Backend, host: Host | None = None) -> Injection:
    """What a pod with these slices is given; without any, the variables that hide every GPU.

    `host` may be None only where nothing is shared: the pod has whole GPUs, or none.
    """
    names = [one.uuid for one in slices]
    devices = (*(one.device_file for one in slices if one.device_file), *COMMON_DEVICES) if slices else ()
    seen = {
        "NVIDIA_VISIBLE_DEVICES": ",".join(names) or "void",
        "CUDA_VISIBLE_DEVICES": ",".join(names),  # empty hides them all
        "RUNAI_NUM_OF_GPUS": _number(sum(one.milli for one in slices)),
    }
    shared = [one for one in slices if one.is_shared]
    if not shared or backend is Backend.NONE:
        return Injection(seen, devices=devices)
    assert host is not None, "a part of a GPU needs the library"
    leased = [one for one in shared if one.mode.is_leased]
    # The driver does not limit managed memory, so the library stays on for that, whatever the backend.
    mounts = [Mount(LIBRARY, host.library), _written(LEDGER, f"{host.folder}/ledger", LEDGER_BYTES)]
    mounts += [_written(f"{GATES}/{one.uuid}", f"{host.gates}/{one.uuid}", GATE_BYTES) for one in leased]
    if host.mps:
        mounts.append(Mount(MPS, host.mps, read_only=False))
        seen |= {"CUDA_MPS_PIPE_DIRECTORY": MPS} | mps_share(shared[0])
    return Injection(
        environment=seen | {"NVIDIA_DRIVER_CAPABILITIES": _CAPABILITIES},
        files=(
            File(PRELOAD, LIBRARY + "\n", append=True),
            File(LIMITS, limits_text(slices, backend), source=f"{host.folder}/limits"),
        ),
        mounts=tuple(mounts),
        devices=devices,
        unfenced=_unfenced(shared[0], host),
        fenced=True,
        group_limits=tuple(map(_group_limit, shared)) if backend is Backend.CGROUP else (),
    )


def mps_share(one: DeviceShareLimit) -> dict[str, str]:
    """The part of a GPU's compute that MPS gives it."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 * one.milli / GPU:g}"}


def preload_text(own: str, ours: str) -> str:
    """The image's own file, kept, with our line after it; a line that is there already is not added twice."""
    missing = [line for line in ours.splitlines() if line not in own.split()]
    return "".join(line + "\n" for line in [*own.splitlines(), *missing])


def _group_limit(one: DeviceShareLimit) -> GroupLimit:
    return GroupLimit(one.uuid, one.guaranteed_mib * MIB, one.limit_mib * MIB)


def _written(place: str, source: str, size: int) -> Mount:
    return Mount(place, source, read_only=False, zeros=size)


def _unfenced(one: DeviceShareLimit, host: Host) -> dict[str, str]:
    """One GPU only: variables cannot tell several apart."""
    mps = {"CUDA_MPS_PIPE_DIRECTORY": host.mps} if host.mps else {}
    return mps | {
        "LD_PRELOAD": host.library,
        "GPUSHARE_LIMIT_MIB": str(one.limit_mib),
        "GPUSHARE_LEDGER": f"{host.folder}/ledger",
        "GPUSHARE_WEIGHT": str(one.milli),
        "GPUSHARE_MODE": (one.mode if one.mode.is_leased else Mode.TIMESHARING).value,
        "GPUSHARE_GATE": host.gates,
        "GPUSHARE_TENANT": one.tenant,
        "GPUSHARE_CONTEXT_MIB": str(one.context_mib),
    }


def _number(milli: int) -> str:
    return f"{milli / 1000:g}"
