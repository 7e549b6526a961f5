"""Memory limits that the driver itself keeps, on the control group of a pod: set, and read back.

Only a group without children counts: a limit on the group above does not reach a new one. The soft limit of a group
is added to what the groups above it guarantee, so it goes back to 0 before the group is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aliquot.backends.local.devices.gpu_driver import CgroupLimiter, LimitNotSet
from aliquot.gpu.injection import CgroupLimit
from aliquot.units import MIB

UNLIMITED = (1 << 64) - 1  # as the driver spells it


def hold(keeper: CgroupLimiter, group: Path, limit: CgroupLimit) -> None:
    """`NotKept` when the driver refuses, or says afterwards that something else is set."""
    keeper.set_limits(group, limit.uuid, limit.soft, limit.hard)
    found = keeper.limits(group, limit.uuid)
    if found != (limit.soft, limit.hard):
        set_, wanted = (f"{soft // MIB} to {hard // MIB} MiB" for soft, hard in (found, (limit.soft, limit.hard)))
        raise LimitNotSet(f"the driver keeps {set_} on {limit.uuid} instead of {wanted}")


def let_go(keeper: CgroupLimiter, group: Path, uuids: Iterable[str]) -> None:
    """Best effort: the group goes anyway."""
    for uuid in uuids:
        with suppress(LimitNotSet):
            keeper.set_limits(group, uuid, 0, UNLIMITED)
