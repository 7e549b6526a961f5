"""The driver's own limits on the control groups of pods: set before a pod runs, read back, and taken away after it."""

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
from support.pods.single import UID
from support.stores.running import running

LIMIT = CgroupLimit("GPU-a", 1 << 30, 2 << 30)
UNLIMITED = (1 << 64) - 1


class Place:
    """A runtime whose control groups are folders that a test has made, and whose driver is the test's."""

    def __init__(self, folder: Path) -> None:
        self.driver = r615()
        self.groups = folder / "groups"
        for place in (self.groups, self.groups / "aliquot"):
            place.mkdir(parents=True)
            (place / "cgroup.controllers").write_text("cpu memory dmem\n")
            (place / "cgroup.subtree_control").touch()
        self.group = self.groups / "aliquot" / UID
        self.data = folder / "data"

    def runtime(self, keeper: FakeDriver | None = None) -> ProcessRuntime:
        tree = Cgroups(self.groups, self.groups)
        return ProcessRuntime(self.data, isolated=False, control_groups=tree, cgroup_limiter=keeper or self.driver)

    async def runs(self, runtime: ProcessRuntime, script: str = "echo ran") -> str:
        """What a pod prints whose GPU the driver limits."""
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
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_limits_are_set_before_the_program_runs(place: Place) -> None:
    """Guarantee and limit are the driver's before anything is in the group, and the pod is in it."""
    place.driver.watched = place.data / "pods" / UID / "state.json"

    assert await place.runs(place.runtime()) == "ran\n"

    assert place.driver.group_limits == {(place.group, "GPU-a"): (1 << 30, 2 << 30)}
    assert place.driver.watched_existed == [False]
    assert (place.group / "cgroup.procs").read_text() == "0"  # the launcher's own, and what it starts


@pytest.mark.parametrize("fault", ["refused", "ignored"])
async def test_a_limit_that_does_not_hold(place: Place, fault: str) -> None:
    """Where the driver refuses, or sets something else, the pod does not run, and the reason says so."""
    place.driver.fault = fault

    with pytest.raises(CannotStart, match="cannot be enforced") as caught:
        await place.runs(place.runtime())

    assert caught.value.reason == "GPULimitNotKept"
    assert not (place.data / "pods" / UID / "log").exists()


async def test_a_group_that_cannot_be_joined(place: Place) -> None:
    """A pod outside the group would have no limit: it does not run."""
    (place.group / "cgroup.procs").mkdir(parents=True)

    with pytest.raises(CannotStart, match="cannot be enforced") as caught:
        await place.runs(place.runtime())

    assert caught.value.reason == "GPULimitNotKept"


async def test_the_guarantee_goes_before_the_group(place: Place) -> None:
    """Groups above would keep it for ever; a platform that was started later does it as well."""
    await place.runs(place.runtime())
    place.driver.watched_existed.clear()
    place.driver.watched = place.group

    await place.runtime().remove(UID)

    assert place.driver.group_limits == {(place.group, "GPU-a"): (0, UNLIMITED)}
    assert place.driver.watched_existed == [True]


async def test_limits_of_a_running_pod_move(place: Place) -> None:
    """Both are changed on its group; what the driver does not do is told to who asked."""
    runtime = place.runtime()
    await place.runs(runtime)

    assert runtime.set_cgroup_limit(UID, CgroupLimit("GPU-a", 1 << 30, 3 << 30))
    assert place.driver.group_limits[place.group, "GPU-a"] == (1 << 30, 3 << 30)
    place.driver.fault = "ignored"
    assert not runtime.set_cgroup_limit(UID, LIMIT)


async def test_killed_between_orders_and_group(place: Place) -> None:
    """What the next platform finds is removed, whether the group was made or not."""
    place.driver.fault = "refused"
    with pytest.raises(CannotStart):
        await place.runs(place.runtime())
    (spec,) = (place.data / "pods").glob("*/spec.json")
    assert json.loads(spec.read_text())["cgroups"][0]["path"] == str(place.group)
    place.driver.fault = ""

    runtime = place.runtime()
    (recovered,) = runtime.recover_pods()
    await runtime.remove(recovered.assignment.uid)

    assert not place.group.exists()
    assert runtime.recover_pods() == []


def test_what_is_read_back_must_be_what_was_set(tmp_path: Path) -> None:
    """A driver that keeps something else is found out, and both are named."""
    driver = r615()
    driver.fault = "ignored"
    driver.group_limits[tmp_path, "GPU-a"] = (0, 16 << 30)

    with pytest.raises(LimitNotSet, match="set 0 to 16384 MiB on GPU-a instead of 1024 to 2048 MiB"):
        driver_limits.set_limit(driver, tmp_path, LIMIT)


def test_only_one_tree_of_groups_will_do(tmp_path: Path) -> None:
    """Pods have a group for the driver where the machine has version 2, and only there."""
    (tmp_path / "old" / "memory").mkdir(parents=True)

    assert Cgroups(tmp_path / "old").leaf(UID) is None
    assert Place(tmp_path).runtime().cgroup_version == 0  # nor where pods are not kept apart
