"""The driver's own limits on the control groups of pods: set before a pod runs, verified, and cleared after it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from aliquot.backends.local.devices import driver_limits
from aliquot.backends.local.devices.gpu_driver import LimitNotSet
from aliquot.backends.local.runtime import CannotStart, Launch, PodAssignment, Started
from aliquot.backends.local.runtimes.cgroups import Cgroups
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.gpu.injection import CgroupLimit, Injection
from support.gpus import FakeDriver, r615
from support.pods.single_pod import UID
from support.stores.running import running

LIMIT = CgroupLimit("GPU-a", 1 << 30, 2 << 30)
UNLIMITED = (1 << 64) - 1


class LimitedRuntime:
    """A runtime whose control groups are plain folders, and whose driver is a fake."""

    def __init__(self, folder: Path) -> None:
        self.driver = r615()
        self.groups = folder / "groups"
        for limited in (self.groups, self.groups / "aliquot"):
            limited.mkdir(parents=True)
            (limited / "cgroup.controllers").write_text("cpu memory dmem\n")
            (limited / "cgroup.subtree_control").touch()
        self.group = self.groups / "aliquot" / UID
        self.data = folder / "data"

    def runtime(self, driver: FakeDriver | None = None) -> ProcessRuntime:
        tree = Cgroups(self.groups, self.groups)
        return ProcessRuntime(self.data, isolated=False, control_groups=tree, cgroup_limiter=driver or self.driver)

    async def run_pod(self, runtime: ProcessRuntime, script: str = "echo ran") -> str:
        """Runs a pod whose GPU memory the driver limits; returns its output."""
        over = asyncio.Event()
        runtime.on_end = lambda uid, ended: over.set()
        assignment = PodAssignment(UID, "runai-team-a", "p-0-0", "here")
        launch = Launch(assignment, 0, ("sh", "-c", script), injection=Injection(cgroup_limits=(LIMIT,)))
        async with running(runtime.run()):
            if isinstance(await runtime.start(launch), Started):
                async with asyncio.timeout(60):
                    await over.wait()
        return (self.data / "pods" / UID / "log").read_text()


@pytest.fixture
def limited(tmp_path: Path) -> LimitedRuntime:
    return LimitedRuntime(tmp_path)


async def test_limits_are_set_before_the_program_runs(limited: LimitedRuntime) -> None:
    """The driver has guarantee and limit before a process is in the group, and the pod joins the group."""
    limited.driver.watched = limited.data / "pods" / UID / "state.json"

    assert await limited.run_pod(limited.runtime()) == "ran\n"

    assert limited.driver.group_limits == {(limited.group, "GPU-a"): (1 << 30, 2 << 30)}
    assert limited.driver.watched_existed == [False]
    assert (limited.group / "cgroup.procs").read_text() == "0"  # the launcher and its children


@pytest.mark.parametrize("fault", ["refused", "ignored"])
async def test_a_limit_that_is_not_set(limited: LimitedRuntime, fault: str) -> None:
    """When the driver refuses the limit or sets another one, the pod is not started, with the reason."""
    limited.driver.fault = fault

    with pytest.raises(CannotStart, match="cannot be enforced") as caught:
        await limited.run_pod(limited.runtime())

    assert caught.value.reason == "GPULimitNotKept"
    assert not (limited.data / "pods" / UID / "log").exists()


async def test_a_group_that_cannot_be_joined(limited: LimitedRuntime) -> None:
    """A pod outside the group would have no limit: it does not run."""
    (limited.group / "cgroup.procs").mkdir(parents=True)

    with pytest.raises(CannotStart, match="cannot be enforced") as caught:
        await limited.run_pod(limited.runtime())

    assert caught.value.reason == "GPULimitNotKept"


async def test_the_guarantee_is_cleared_before_the_group_is_removed(limited: LimitedRuntime) -> None:
    """Otherwise the parent groups would keep it for ever. A platform that was started later does it too."""
    await limited.run_pod(limited.runtime())
    limited.driver.watched_existed.clear()
    limited.driver.watched = limited.group

    await limited.runtime().remove(UID)

    assert limited.driver.group_limits == {(limited.group, "GPU-a"): (0, UNLIMITED)}
    assert limited.driver.watched_existed == [True]


async def test_limits_of_a_running_pod_change(limited: LimitedRuntime) -> None:
    """The limit changes on the pod's group; when the driver does not change it, the call returns False."""
    runtime = limited.runtime()
    await limited.run_pod(runtime)

    assert runtime.set_cgroup_limit(UID, CgroupLimit("GPU-a", 1 << 30, 3 << 30))
    assert limited.driver.group_limits[limited.group, "GPU-a"] == (1 << 30, 3 << 30)
    limited.driver.fault = "ignored"
    assert not runtime.set_cgroup_limit(UID, LIMIT)


async def test_killed_between_spec_and_group(limited: LimitedRuntime) -> None:
    """The next platform removes the pod, whether its group was created or not."""
    limited.driver.fault = "refused"
    with pytest.raises(CannotStart):
        await limited.run_pod(limited.runtime())
    (spec,) = (limited.data / "pods").glob("*/spec.json")
    assert json.loads(spec.read_text())["cgroups"][0]["path"] == str(limited.group)
    limited.driver.fault = ""

    runtime = limited.runtime()
    (recovered,) = runtime.recover_pods()
    await runtime.remove(recovered.assignment.uid)

    assert not limited.group.exists()
    assert runtime.recover_pods() == []


def test_limits_are_verified(tmp_path: Path) -> None:
    """When the driver reports another limit, the error names both."""
    driver = r615()
    driver.fault = "ignored"
    driver.group_limits[tmp_path, "GPU-a"] = (0, 16 << 30)

    with pytest.raises(LimitNotSet, match="set 0 to 16384 MiB on GPU-a instead of 1024 to 2048 MiB"):
        driver_limits.set_limit(driver, tmp_path, LIMIT)


def test_driver_limits_need_version_2(tmp_path: Path) -> None:
    """Pods have a control group for the driver only on machines with cgroups version 2."""
    (tmp_path / "old" / "memory").mkdir(parents=True)

    assert Cgroups(tmp_path / "old").leaf(UID) is None
    assert LimitedRuntime(tmp_path).runtime().cgroup_version == 0  # nor when pods are not isolated
