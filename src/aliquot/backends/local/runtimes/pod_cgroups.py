"""The control groups of a pod: which it joins, and the GPU memory that the driver grants them, where it can.

A group that the driver limits is made and limited before the launcher puts anything into it. It is in the pod's orders
before it is made, and goes before they do: killed at any moment, nothing is left that nobody knows of.
"""

from __future__ import annotations

import structlog

from aliquot.api import Json
from aliquot.backends.local.devices import driver_limits
from aliquot.backends.local.devices.gpu_driver import CgroupLimiter, LimitNotSet
from aliquot.backends.local.runtime import CannotStart, Launch
from aliquot.backends.local.runtimes import cgroups
from aliquot.backends.local.runtimes.cgroups import Cgroups
from aliquot.backends.local.runtimes.pod_folder import PodFolder
from aliquot.gpu.injection import CgroupLimit

log = structlog.get_logger()


class PodCgroups:
    def __init__(self, control_groups: Cgroups, keeper: CgroupLimiter | None) -> None:
        self._cgroups = control_groups
        self._keeper = keeper

    def orders(self, launch: Launch) -> list[Json]:
        """For the launcher. Where the driver limits the group, a pod that is not in it must not run: it is needed."""
        uid = launch.assignment.uid
        asked = self._cgroups.groups(uid, launch.memory, launch.cpu, launch.cpu_weight)
        found = {group.path: group.limits for group in asked}
        needed = self._cgroups.leaf(uid) if launch.injection.cgroup_limits else None
        if needed is not None:
            found.setdefault(needed, {})
        return [{"path": str(path), "limits": limits, "needed": path == needed} for path, limits in found.items()]

    def limit(self, folder: PodFolder) -> None:
        """As its orders say; `CannotStart` when that does not hold."""
        for limit in folder.gpu_limits():
            try:
                self._hold(folder, limit)
            except (LimitNotSet, OSError) as exc:
                said = f"its GPU fraction cannot be enforced: {exc}"
                raise CannotStart("GPULimitNotKept", said) from exc

    def move(self, folder: PodFolder, limit: CgroupLimit) -> bool:
        try:
            self._hold(folder, limit)
        except (LimitNotSet, OSError) as exc:
            log.warning("GPU memory limit not changed", pod=folder.uid, gpu=limit.uuid, error=str(exc))
            return False
        return True

    def remove(self, folder: PodFolder) -> None:
        """Once nothing of the pod is alive."""
        group = folder.limited_group()
        if self._keeper is not None and group is not None and group.is_dir():
            driver_limits.clear_limits(self._keeper, group, [limit.uuid for limit in folder.gpu_limits()])
        cgroups.remove(folder.cgroups())

    def _hold(self, folder: PodFolder, limit: CgroupLimit) -> None:
        group = folder.limited_group()
        if self._keeper is None or group is None:
            raise LimitNotSet("nobody can limit its control group")
        group.mkdir(exist_ok=True)
        driver_limits.set_limit(self._keeper, group, limit)
