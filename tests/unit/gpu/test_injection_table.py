"""The files, devices and variables that pods get for their share of the GPUs."""

from __future__ import annotations

import pytest

from aliquot.gpu.fractions import ComputeMode, Enforcement, GpuAllocation
from aliquot.gpu.injection import (
    GATES,
    LEDGER,
    LIBRARY,
    LIMITS,
    PRELOAD,
    HostPaths,
    Injection,
    build_injection,
    preload_text,
)
from aliquot.gpu.limits_file import render_limits

HOST = HostPaths("/lib/gpushare.so", "/shm/pod-1", "/shm/gates")


def fraction(uuid: str = "GPU-a", milli: int = 500, mode: ComputeMode = ComputeMode.TIMESHARING) -> GpuAllocation:
    return GpuAllocation(0, uuid, "NVIDIA A10", milli, 11514, 11514, mode, "/dev/nvidia0", "pod-1", 518)


def writable_by_path(injection: Injection) -> dict[str, bool]:
    """The files that a pod gets, and whether it may write them."""
    return {file.path: False for file in injection.files} | {
        mount.path: not mount.read_only for mount in injection.mounts
    }


@pytest.mark.parametrize(
    ("allocations", "enforcement", "wanted"),
    [
        ((), Enforcement.SHIM, {}),
        ((fraction(milli=1000),), Enforcement.SHIM, {}),
        ((fraction(),), Enforcement.NONE, {}),
        ((fraction(),), Enforcement.SHIM, {LIBRARY: False, PRELOAD: False, LIMITS: False, LEDGER: True}),
        # The driver does not limit managed memory: the library stays.
        ((fraction(),), Enforcement.CGROUP, {LIBRARY: False, PRELOAD: False, LIMITS: False, LEDGER: True}),
        (
            (fraction(mode=ComputeMode.STRICT), fraction("GPU-b", mode=ComputeMode.STRICT)),
            Enforcement.SHIM,
            {
                LIBRARY: False,
                PRELOAD: False,
                LIMITS: False,
                LEDGER: True,
                f"{GATES}/GPU-a": True,
                f"{GATES}/GPU-b": True,
            },
        ),
    ],
    ids=["none", "whole", "no enforcement", "fraction", "fraction, limited by the driver", "two fractions, strict"],
)
def test_files(allocations: tuple[GpuAllocation, ...], enforcement: Enforcement, wanted: dict[str, bool]) -> None:
    """A fraction brings the library, limits and ledger; leases bring a gate per GPU; a whole GPU brings nothing."""
    injection = build_injection(allocations, enforcement, HOST)

    assert writable_by_path(injection) == wanted
    assert injection.requires_library == bool(wanted)


def test_devices() -> None:
    """Only the GPUs that were given, and the device files that every GPU program opens."""
    devices = build_injection((fraction(),), Enforcement.SHIM, HOST).devices

    assert devices[:2] == ("/dev/nvidia0", "/dev/nvidiactl")
    assert build_injection((), Enforcement.SHIM).devices == ()


def test_variables() -> None:
    """GPUs by UUID; a fraction excludes graphics and video, which the library does not intercept."""
    assert build_injection((fraction(), fraction("GPU-b")), Enforcement.SHIM, HOST).environment == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "RUNAI_NUM_OF_GPUS": "1",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def test_no_limit_in_the_environment() -> None:
    """A program could change a variable: limits are in a file, which can be rewritten while the pod runs."""
    injection = build_injection((fraction(),), Enforcement.SHIM, HOST)

    assert not [name for name in injection.environment if name.startswith(("GPUSHARE", "LD_"))]
    (limits,) = (file for file in injection.files if file.path == LIMITS)
    assert (limits.text, limits.source) == (render_limits((fraction(),)), "/shm/pod-1/limits")


def test_without_mounts() -> None:
    """Without mounts the same library is loaded by variables, which cooperative programs keep."""
    environment = build_injection((fraction(),), Enforcement.SHIM, HOST).fallback_environment

    assert (environment["LD_PRELOAD"], environment["GPUSHARE_LIMIT_MIB"]) == (HOST.library, "11514")


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ("", f"{LIBRARY}\n"),
        ("/opt/their.so", f"/opt/their.so\n{LIBRARY}\n"),
        ("# note\n/opt/their.so\n", f"# note\n/opt/their.so\n{LIBRARY}\n"),
        (f"{LIBRARY}\n", f"{LIBRARY}\n"),
    ],
)
def test_the_preload_file_of_an_image_is_kept(own: str, wanted: str) -> None:
    """The library's line comes once, after the image's own lines."""
    assert preload_text(own, LIBRARY + "\n") == wanted
