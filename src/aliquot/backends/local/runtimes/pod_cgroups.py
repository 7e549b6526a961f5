"""The control groups of a pod: which it joins, and their GPU memory limits where the driver enforces them.

A group that the driver limits is created and limited before the launcher moves a process into it. Its path is in the
pod's launch spec before it is created, and it is removed before the spec: if the platform is killed at any moment, no
group is left that the next one does not know of.
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
    def __init__(self, control_groups: Cgroups, limiter: CgroupLimiter | None) -> None:
        self._cgroups = control_groups
        self._limiter = limiter

    def spec(self, launch: Launch) -> list[Json]:
        """The groups in the launch spec. A pod whose GPU memory the driver limits must not run outside its group."""
        uid = launch.assignment.uid
        groups = self._cgroups.groups(uid, launch.memory, launch.cpu, launch.cpu_weight)
        limits_by_path = {group.path: group.limits for group in groups}
        required = self._cgroups.leaf(uid) if launch.injection.cgroup_limits else None
        if required is not None:
            limits_by_path.setdefault(required, {})
        return [
            {"path": str(path), "limits": limits, "needed": path == required} for path, limits in limits_by_path.items()
        ]

    def set_gpu_limits(self, folder: PodFolder) -> None:
        """Set the GPU limits of the launch spec; `CannotStart` when one cannot be set."""
        for limit in folder.gpu_limits():
            try:
                self._set_limit(folder, limit)
            except (LimitNotSet, OSError) as exc:
                message = f"its GPU fraction cannot be enforced: {exc}"
                raise CannotStart("GPULimitNotKept", message) from exc

    def change_gpu_limit(self, folder: PodFolder, limit: CgroupLimit) -> bool:
        """Change a limit while the pod runs; False when it was not changed."""
        try:
            self._set_limit(folder, limit)
        except (LimitNotSet, OSError) as exc:
            log.warning("GPU memory limit not changed", pod=folder.uid, gpu=limit.uuid, error=str(exc))
            return False
        return True

    def remove(self, folder: PodFolder) -> None:
        """Once nothing of the pod is alive."""
        group = folder.limited_group()
        if self._limiter is not None and group is not None and group.is_dir():
            driver_limits.clear_limits(self._limiter, group, [limit.uuid for limit in folder.gpu_limits()])
        cgroups.remove(folder.cgroups())

    def _set_limit(self, folder: PodFolder, limit: CgroupLimit) -> None:
        group = folder.limited_group()
        if self._limiter is None or group is None:
            raise LimitNotSet("it has no control group that the driver can limit")
        group.mkdir(exist_ok=True)
        driver_limits.set_limit(self._limiter, group, limit)
