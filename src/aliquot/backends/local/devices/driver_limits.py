"""GPU memory limits that the driver itself enforces on the control group of a pod: set, verified and cleared.

The driver looks only at a group without children: a limit on the parent does not apply to a new child. The soft limit
of a group counts towards what its parents guarantee, so it is set back to 0 before the group is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aliquot.backends.local.devices.gpu_driver import CgroupLimiter, LimitNotSet
from aliquot.gpu.injection import CgroupLimit
from aliquot.units import MIB

UNLIMITED = (1 << 64) - 1  # the driver's own value for it


def set_limit(limiter: CgroupLimiter, group: Path, limit: CgroupLimit) -> None:
    """`LimitNotSet` when the driver refuses, or reports another limit afterwards."""
    limiter.set_limits(group, limit.uuid, limit.soft, limit.hard)
    actual, wanted = limiter.limits(group, limit.uuid), (limit.soft, limit.hard)
    if actual != wanted:
        actual_text, wanted_text = (f"{soft // MIB} to {hard // MIB} MiB" for soft, hard in (actual, wanted))
        raise LimitNotSet(f"the driver set {actual_text} on {limit.uuid} instead of {wanted_text}")


def clear_limits(limiter: CgroupLimiter, group: Path, uuids: Iterable[str]) -> None:
    """Best effort: the group is removed in any case."""
    for uuid in uuids:
        with suppress(LimitNotSet):
            limiter.set_limits(group, uuid, 0, UNLIMITED)
