"""The limits file of a pod, which the sharing library reads: rendered, read, and changed while the pod runs.

Its format is documented in native/gpushare/README.md. The library calls the pod's uid the tenant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aliquot.gpu.fractions import ComputeMode, Enforcement, GpuAllocation
from aliquot.units import MIB

MAX_DEVICES = 16  # the library reads no more


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that a pod may hold on one GPU."""

    # The current limit: between `guaranteed` and `cap`.
    limit: int
    guaranteed: int
    cap: int


def render_limits(allocations: Sequence[GpuAllocation], enforcement: Enforcement = Enforcement.SHIM) -> str:
    """The text of the limits file of a pod with these GPUs."""
    mode = allocations[0].mode if allocations[0].mode.is_leased else ComputeMode.TIMESHARING
    # Where the driver enforces the limit, the library counts only managed memory, which the driver does not limit.
    keeper = ["keeper driver"] if enforcement is Enforcement.CGROUP else []
    header = ["gpushare 1", f"tenant {allocations[0].pod_uid}", f"mode {mode.value}", *keeper]
    return "".join(line + "\n" for line in [*header, *map(_gpu_line, allocations), "end"])


def _gpu_line(gpu: GpuAllocation) -> str:
    limit, guaranteed, context = (mib * MIB for mib in (gpu.limit_mib, gpu.guaranteed_mib, gpu.context_mib))
    # The library ignores `cap`: it keeps the original limit for the agent, which may lower `limit` later.
    amounts = {"limit": limit, "guaranteed": guaranteed, "weight": max(1, gpu.milli), "context": context, "cap": limit}
    return " ".join([f"gpu {gpu.uuid}", *(f"{name}={amount}" for name, amount in amounts.items())])


def read_limits(path: Path) -> dict[str, Limit]:
    """Limits by GPU uuid; empty where the file cannot be read."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    limits = {}
    for line in lines:
        keyword, _, rest = line.partition(" ")
        if keyword == "gpu":
            uuid, *pairs = rest.split()
            amounts = dict(pair.partition("=")[::2] for pair in pairs)
            limit = int(amounts["limit"])
            limits[uuid] = Limit(limit, int(amounts.get("guaranteed", limit)), int(amounts.get("cap", limit)))
    return limits


def write_limit(path: Path, uuid: str, limit: int) -> bool:
    """Change the limit of a running pod on one GPU; False when it has that limit already or the file is gone.

    The text is written with one call, then the length is set: pods have this very file mounted and must never read a
    partial one.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return False
    lines = [_with_limit(line, uuid, limit) for line in text.splitlines()]
    data = "".join(line + "\n" for line in lines).encode()
    if data == text.encode():
        return False
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(handle, os.pwrite(handle, data, 0))
    finally:
        os.close(handle)
    return True


def _with_limit(line: str, uuid: str, limit: int) -> str:
    if not line.startswith(f"gpu {uuid} "):
        return line
    return " ".join(f"limit={limit}" if word.startswith("limit=") else word for word in line.split(" "))
