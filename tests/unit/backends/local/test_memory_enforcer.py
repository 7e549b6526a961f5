"""The guard: what is done and told when pods hold more GPU memory than they may. Driver and processes are a test's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.gpu_driver import ProcessMemory, ProcessUtilization
from aliquot.backends.local.devices.memory_audit import OverrunPolicy
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.backends.local.memory_enforcer import MemoryEnforcer, PodEvent
from aliquot.backends.local.runtime import PodAssignment
from aliquot.backends.local.runtimes import launch_spec
from aliquot.backends.local.runtimes.pod_folder import PodFolder
from aliquot.gpu import limits_file
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import CgroupLimit
from aliquot.units import MIB
from support.gpus import A10_MIB, NODE, FakeDriver, book, node_of, r615


@dataclass
class Scene:
    """Pods on one A10, and what became of their processes."""

    folder: Path
    policy: OverrunPolicy = OverrunPolicy.KILL_PROCESS
    driver: FakeDriver = field(default_factory=FakeDriver)
    settings: GpuSettings = field(default_factory=GpuSettings)
    assignments: list[PodAssignment] = field(default_factory=list)
    told: list[PodEvent] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    now: float = 0.0
    homes: dict[int, str] = field(default_factory=dict)
    # What the driver was told for control groups, in MiB; a stubborn one does not do it.
    moved: list[tuple[str, int, int]] = field(default_factory=list)
    stubborn: bool = False

    def __post_init__(self) -> None:
        self.devices = node_of(self.folder, self.driver, settings=self.settings)
        self.guard = MemoryEnforcer(
            self.devices,
            self,
            lambda: self.assignments,
            self._tell,
            self._evict,
            policy=self.policy,
            clock=lambda: self.now,
        )

    def pod(self, uid: str, milli: int, wish: SharingOptions | None = None) -> None:
        """Start one, as a runtime would: with its files."""
        share = DeviceShare(index=0, milli=milli)
        launch_spec.inject(
            self.devices.injection(NODE, [share], wish or SharingOptions(), uid), PodFolder(self.folder / uid)
        )
        self.assignments.append(PodAssignment(uid, "runai-team-a", f"{uid}-0-0", NODE, (share,)))

    def holds(self, uid: str, pid: int, mib: int) -> None:
        self.homes[pid] = uid
        kept = tuple(use for use in self.driver.used if use.pid != pid)
        self.driver.used = (*kept, ProcessMemory("GPU-a", pid, mib * MIB)) if mib else kept

    async def looks(self, times: int, seconds: float = 1.0) -> None:
        for _ in range(times):
            await self.guard.look()
            self.now += seconds

    def limit(self, uid: str) -> int:
        return limits_file.read_limits(self.devices.share_dirs.of(uid) / "limits")["GPU-a"].limit // MIB

    def owners(self, pids: object) -> dict[int, str]:
        return self.homes

    def program(self, pid: int) -> str:
        return f"p{pid}"

    def end_process(self, uid: str, pid: int) -> bool:
        self.killed.append(pid)
        self.holds(uid, pid, 0)
        return True

    def move_limit(self, uid: str, limit: CgroupLimit) -> bool:
        self.moved.append((uid, limit.soft // MIB, limit.hard // MIB))
        return not self.stubborn

    async def _tell(self, told: PodEvent) -> None:
        self.told.append(told)

    async def _evict(self, assignment: PodAssignment) -> None:
        self.evicted.append(assignment.uid)


async def test_who_keeps_to_its_slice_is_left_alone(tmp_path: Path) -> None:
    """F2: a greedy program that stops at its slice is neither touched nor told of."""
    scene = Scene(tmp_path)
    scene.pod("x", 300)
    scene.holds("x", 1, 6908)

    await scene.looks(10)

    assert (scene.killed, scene.told) == ([], [])


async def test_who_goes_around_the_fence_is_stopped(tmp_path: Path) -> None:
    """F6: a process that holds more than the slice is ended at the third look; the neighbour never notices."""
    scene = Scene(tmp_path)
    scene.pod("x", 300)
    scene.pod("y", 500)
    scene.holds("x", 1, 9000)
    scene.holds("y", 2, 11514)

    await scene.looks(2)
    assert scene.killed == []
    await scene.looks(3)

    assert scene.killed == [1]
    (told,) = scene.told
    assert (told.assignment.uid, told.reason) == ("x", "GPUMemoryOverrun")
    assert told.message == "holds 9000 MiB of GPU memory on GPU-a; its limit is 6908 MiB; its process p1 (1) was killed"


async def test_a_whole_gpu_has_no_other_limit(tmp_path: Path) -> None:
    """Who has a whole GPU may fill it."""
    scene = Scene(tmp_path)
    scene.pod("x", 1000)
    scene.holds("x", 1, A10_MIB)

    await scene.looks(5)

    assert scene.killed == []


async def test_a_warning_is_said_once(tmp_path: Path) -> None:
    """With the policy `warn` nothing is ended, and an overrun that goes on is told once."""
    scene = Scene(tmp_path, OverrunPolicy.WARN)
    scene.pod("x", 300)
    scene.holds("x", 1, 9000)

    await scene.looks(6)

    assert (scene.killed, len(scene.told)) == ([], 1)


async def test_a_pod_may_be_evicted(tmp_path: Path) -> None:
    """With the policy `evict` the pod is stopped as a whole."""
    scene = Scene(tmp_path, OverrunPolicy.EVICT)
    scene.pod("x", 300)
    scene.holds("x", 1, 9000)

    await scene.looks(3)

    assert (scene.killed, scene.evicted) == ([], ["x"])


async def test_a_borrower_gives_back(tmp_path: Path) -> None:
    """F12: request 0.25, limit 0.8; when the neighbour uses its part the borrower's process is ended, not its pod."""
    scene = Scene(tmp_path)
    scene.pod("borrower", 250, SharingOptions(limit_milli=800))
    scene.holds("borrower", 1, 18000)
    await scene.looks(5)
    assert (scene.limit("borrower"), scene.killed) == (18422, [])

    scene.pod("owner", 500)
    await scene.looks(1)
    assert scene.limit("borrower") == A10_MIB - 11514  # no more than is left, from the first look on
    await scene.looks(2)

    assert (scene.killed, scene.evicted) == ([1], [])
    assert scene.limit("owner") == 11514


async def test_an_idle_owner_lends_again(tmp_path: Path) -> None:
    """A neighbour that has started long ago and has no process on the card lends what it does not use."""
    scene = Scene(tmp_path)
    scene.pod("borrower", 250, SharingOptions(limit_milli=800))
    scene.pod("notebook", 500)
    await scene.looks(1)
    assert scene.limit("borrower") == A10_MIB - 11514

    await scene.looks(2, seconds=60.0)

    assert scene.limit("borrower") == 18422


async def test_limits_without_growth_stay(tmp_path: Path) -> None:
    """Where nobody may grow no limits file is ever written again."""
    scene = Scene(tmp_path)
    scene.pod("x", 300)
    file = scene.devices.share_dirs.of("x") / "limits"
    before = file.stat().st_mtime_ns

    await scene.looks(3)

    assert file.stat().st_mtime_ns == before


async def test_a_refusal_is_told(tmp_path: Path) -> None:
    """Who runs into its limit finds it in its events, with figures, once for each time it was looked at."""
    scene = Scene(tmp_path)
    scene.pod("x", 300)
    scene.holds("x", 1, 6900)
    (scene.devices.share_dirs.of("x") / "ledger").write_bytes(book(refusals=2, asked=20 * MIB))

    await scene.looks(3)

    (told,) = scene.told
    assert (told.reason, told.message) == (
        "GPUMemoryLimit",
        "GPU memory limit 6908 MiB reached (used 6900, asked 20)",
    )


async def test_a_platform_that_is_started_again_knows_the_limits(tmp_path: Path) -> None:
    """A new guard holds pods that were started before it to the limits they were given."""
    scene = Scene(tmp_path)
    scene.pod("x", 250, SharingOptions(limit_milli=800))
    scene.holds("x", 1, 20000)
    again = Scene(tmp_path, assignments=scene.assignments, driver=scene.driver, homes=scene.homes)

    await again.looks(3)

    assert again.killed == [1]


async def test_the_driver_moves_limits_too(tmp_path: Path) -> None:
    """Where the driver keeps limits, a borrower's falls there as well; its guarantee stays."""
    scene = Scene(tmp_path, driver=r615())
    scene.pod("borrower", 250, SharingOptions(limit_milli=800))
    scene.pod("owner", 500)

    await scene.looks(2)

    assert scene.moved == [("borrower", 5757, A10_MIB - 11514)]
    assert scene.limit("borrower") == A10_MIB - 11514


async def test_what_the_driver_did_not_do_is_tried_again(tmp_path: Path) -> None:
    """A limit that the driver did not move is not written down either, so that the next look tries again."""
    scene = Scene(tmp_path, driver=r615(), stubborn=True)
    scene.pod("borrower", 250, SharingOptions(limit_milli=800))
    scene.pod("owner", 500)

    await scene.looks(2)

    assert len(scene.moved) == 2
    assert scene.limit("borrower") == 18422


async def test_an_entry_point_that_nobody_knows(tmp_path: Path) -> None:
    """The pod is told of once, and the node says it from then on, with driver and library."""
    scene = Scene(tmp_path)
    scene.pod("x", 300)
    (scene.devices.share_dirs.of("x") / "ledger").write_bytes(book(unknown="cuMemAllocTwice"))

    await scene.looks(3)

    assert [told.reason for told in scene.told] == ["ShimOutdated"]
    (facts,) = scene.devices.nodes()
    assert "driver 580.159.04: the driver's cuMemAllocTwice is unknown" in facts.outdated


async def test_a_reserve_is_not_taken_from_a_whole_gpu(tmp_path: Path) -> None:
    """Memory that is kept out of parts may be filled by who has the GPU alone."""
    scene = Scene(tmp_path, settings=GpuSettings(reserve_mib=2048))
    scene.pod("x", 1000)
    scene.holds("x", 1, A10_MIB)

    await scene.looks(5)

    assert scene.killed == []


async def test_how_busy_gpus_are_is_noted(tmp_path: Path) -> None:
    """From the first figure on: a driver that never has one is not taken for an idle card."""
    scene = Scene(tmp_path)
    await scene.looks(1)
    assert scene.devices.busy is None

    scene.driver.did = (ProcessUtilization("GPU-a", 1, 60, 0),)
    await scene.looks(1)
    assert scene.devices.busy == {"GPU-a": 60}
    scene.driver.did = ()
    await scene.looks(1)

    assert scene.devices.busy == {}
