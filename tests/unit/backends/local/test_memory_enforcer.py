"""The memory enforcer: what happens to pods that hold more GPU memory than they may. Driver and processes are fakes."""

from __future__ import annotations

from collections.abc import Mapping
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
from support.gpus import A10_MIB, NODE, FakeDriver, ledger_bytes, node_of, r615


@dataclass
class NodeWithPods:
    """Pods on one A10, and what became of their processes."""

    folder: Path
    policy: OverrunPolicy = OverrunPolicy.KILL_PROCESS
    driver: FakeDriver = field(default_factory=FakeDriver)
    settings: GpuSettings = field(default_factory=GpuSettings)
    assignments: list[PodAssignment] = field(default_factory=list)
    events: list[PodEvent] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    now: float = 0.0
    pods_by_pid: dict[int, str] = field(default_factory=dict)
    # Limits that the driver was asked to set on control groups: pod, soft and hard in MiB.
    cgroup_limits: list[tuple[str, int, int]] = field(default_factory=list)
    driver_refuses: bool = False

    def __post_init__(self) -> None:
        self.devices = node_of(self.folder, self.driver, settings=self.settings)
        self.enforcer = MemoryEnforcer(
            self.devices,
            self,
            lambda: self.assignments,
            self._record,
            self._evict,
            policy=self.policy,
            clock=lambda: self.now,
        )

    def pod(self, uid: str, milli: int, options: SharingOptions | None = None) -> None:
        """Start a pod as a runtime would, with its files."""
        share = DeviceShare(index=0, milli=milli)
        launch_spec.inject(
            self.devices.injection(NODE, [share], options or SharingOptions(), uid), PodFolder(self.folder / uid)
        )
        self.assignments.append(PodAssignment(uid, "runai-team-a", f"{uid}-0-0", NODE, (share,)))

    def holds(self, uid: str, pid: int, mib: int) -> None:
        self.pods_by_pid[pid] = uid
        others = tuple(process for process in self.driver.used if process.pid != pid)
        self.driver.used = (*others, ProcessMemory("GPU-a", pid, mib * MIB)) if mib else others

    async def checks(self, times: int, seconds: float = 1.0) -> None:
        for _ in range(times):
            await self.enforcer.check()
            self.now += seconds

    def limit(self, uid: str) -> int:
        return limits_file.read_limits(self.devices.share_dirs.pod_dir(uid) / "limits")["GPU-a"].limit // MIB

    def owners(self, pids: object) -> dict[int, str]:
        return self.pods_by_pid

    def program(self, pid: int) -> str:
        return f"p{pid}"

    def kill_process(self, uid: str, pid: int) -> bool:
        self.killed.append(pid)
        self.holds(uid, pid, 0)
        return True

    def set_cgroup_limit(self, uid: str, limit: CgroupLimit) -> bool:
        self.cgroup_limits.append((uid, limit.soft // MIB, limit.hard // MIB))
        return not self.driver_refuses

    async def _record(self, event: PodEvent) -> None:
        self.events.append(event)

    async def _evict(self, assignment: PodAssignment) -> None:
        self.evicted.append(assignment.uid)


async def test_a_pod_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    """F2: a greedy program that stops at its limit is not killed and causes no event."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 300)
    gpu_node.holds("x", 1, 6908)

    await gpu_node.checks(10)

    assert (gpu_node.killed, gpu_node.events) == ([], [])


async def test_a_process_that_bypasses_the_library_is_killed(tmp_path: Path) -> None:
    """F6: a process that holds more than its limit is killed at the third check; the other pod is not affected."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 300)
    gpu_node.pod("y", 500)
    gpu_node.holds("x", 1, 9000)
    gpu_node.holds("y", 2, 11514)

    await gpu_node.checks(2)
    assert gpu_node.killed == []
    await gpu_node.checks(3)

    assert gpu_node.killed == [1]
    (event,) = gpu_node.events
    assert (event.assignment.uid, event.reason) == ("x", "GPUMemoryOverrun")
    assert (
        event.message == "holds 9000 MiB of GPU memory on GPU-a; its limit is 6908 MiB; its process p1 (1) was killed"
    )


async def test_a_pod_may_fill_a_whole_gpu(tmp_path: Path) -> None:
    """A pod with a whole GPU may use all of its memory."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 1000)
    gpu_node.holds("x", 1, A10_MIB)

    await gpu_node.checks(5)

    assert gpu_node.killed == []


async def test_a_warning_is_recorded_once(tmp_path: Path) -> None:
    """With the policy `warn` nothing is killed, and an overrun that goes on is recorded once."""
    gpu_node = NodeWithPods(tmp_path, OverrunPolicy.WARN)
    gpu_node.pod("x", 300)
    gpu_node.holds("x", 1, 9000)

    await gpu_node.checks(6)

    assert (gpu_node.killed, len(gpu_node.events)) == ([], 1)


async def test_a_pod_may_be_evicted(tmp_path: Path) -> None:
    """With the policy `evict` the pod is stopped as a whole."""
    gpu_node = NodeWithPods(tmp_path, OverrunPolicy.EVICT)
    gpu_node.pod("x", 300)
    gpu_node.holds("x", 1, 9000)

    await gpu_node.checks(3)

    assert (gpu_node.killed, gpu_node.evicted) == ([], ["x"])


async def test_a_borrower_returns_memory(tmp_path: Path) -> None:
    """F12: request 0.25, limit 0.8; when the owner uses its fraction, the borrower's process is killed, not its pod."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("borrower", 250, SharingOptions(limit_milli=800))
    gpu_node.holds("borrower", 1, 18000)
    await gpu_node.checks(5)
    assert (gpu_node.limit("borrower"), gpu_node.killed) == (18422, [])

    gpu_node.pod("owner", 500)
    await gpu_node.checks(1)
    assert gpu_node.limit("borrower") == A10_MIB - 11514  # what is left, from the first check on
    await gpu_node.checks(2)

    assert (gpu_node.killed, gpu_node.evicted) == ([1], [])
    assert gpu_node.limit("owner") == 11514


async def test_an_idle_owner_lends_again(tmp_path: Path) -> None:
    """A pod that started long ago and has no process on the GPU lends its guarantee."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("borrower", 250, SharingOptions(limit_milli=800))
    gpu_node.pod("notebook", 500)
    await gpu_node.checks(1)
    assert gpu_node.limit("borrower") == A10_MIB - 11514

    await gpu_node.checks(2, seconds=60.0)

    assert gpu_node.limit("borrower") == 18422


async def test_limits_stay_where_no_pod_may_grow(tmp_path: Path) -> None:
    """Where no pod may grow, limits files are never rewritten."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 300)
    file = gpu_node.devices.share_dirs.pod_dir("x") / "limits"
    before = file.stat().st_mtime_ns

    await gpu_node.checks(3)

    assert file.stat().st_mtime_ns == before


async def test_a_refusal_is_recorded(tmp_path: Path) -> None:
    """A refused allocation becomes an event with figures; checks without a new refusal add none."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 300)
    gpu_node.holds("x", 1, 6900)
    (gpu_node.devices.share_dirs.pod_dir("x") / "ledger").write_bytes(ledger_bytes(refusals=2, requested=20 * MIB))

    await gpu_node.checks(3)

    (event,) = gpu_node.events
    assert (event.reason, event.message) == (
        "GPUMemoryLimit",
        "GPU memory limit 6908 MiB reached (used 6900, asked 20)",
    )


async def test_limits_survive_a_restart_of_the_platform(tmp_path: Path) -> None:
    """A new enforcer applies the limits of pods that were started before it."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 250, SharingOptions(limit_milli=800))
    gpu_node.holds("x", 1, 20000)
    again = NodeWithPods(
        tmp_path, assignments=gpu_node.assignments, driver=gpu_node.driver, pods_by_pid=gpu_node.pods_by_pid
    )

    await again.checks(3)

    assert again.killed == [1]


async def test_the_driver_changes_its_limits_too(tmp_path: Path) -> None:
    """Where the driver enforces limits, a borrower's limit falls there as well; its guarantee stays."""
    gpu_node = NodeWithPods(tmp_path, driver=r615())
    gpu_node.pod("borrower", 250, SharingOptions(limit_milli=800))
    gpu_node.pod("owner", 500)

    await gpu_node.checks(2)

    assert gpu_node.cgroup_limits == [("borrower", 5757, A10_MIB - 11514)]
    assert gpu_node.limit("borrower") == A10_MIB - 11514


async def test_a_limit_that_the_driver_did_not_set_is_tried_again(tmp_path: Path) -> None:
    """A limit that the driver did not set is not written to the limits file, so the next check tries again."""
    gpu_node = NodeWithPods(tmp_path, driver=r615(), driver_refuses=True)
    gpu_node.pod("borrower", 250, SharingOptions(limit_milli=800))
    gpu_node.pod("owner", 500)

    await gpu_node.checks(2)

    assert len(gpu_node.cgroup_limits) == 2
    assert gpu_node.limit("borrower") == 18422


async def test_an_unknown_entry_point(tmp_path: Path) -> None:
    """One event for the pod; the node reports it from then on, with the versions of driver and library."""
    gpu_node = NodeWithPods(tmp_path)
    gpu_node.pod("x", 300)
    (gpu_node.devices.share_dirs.pod_dir("x") / "ledger").write_bytes(ledger_bytes(unknown="cuMemAllocTwice"))

    await gpu_node.checks(3)

    assert [event.reason for event in gpu_node.events] == ["ShimOutdated"]
    (facts,) = gpu_node.devices.nodes()
    assert "driver 580.159.04: the driver's cuMemAllocTwice is unknown" in facts.shim_outdated


async def test_a_reserve_is_not_taken_from_a_whole_gpu(tmp_path: Path) -> None:
    """Memory that is reserved from fractions may be used by a pod that has the whole GPU."""
    gpu_node = NodeWithPods(tmp_path, settings=GpuSettings(reserve_mib=2048))
    gpu_node.pod("x", 1000)
    gpu_node.holds("x", 1, A10_MIB)

    await gpu_node.checks(5)

    assert gpu_node.killed == []


async def test_utilization_is_measured(tmp_path: Path) -> None:
    """From the first figure on: a driver that never has one is not reported as idle."""
    gpu_node = NodeWithPods(tmp_path)

    def utilization() -> Mapping[str, int] | None:
        return gpu_node.devices.utilization

    await gpu_node.checks(1)
    assert utilization() is None

    gpu_node.driver.utilization = (ProcessUtilization("GPU-a", 1, 60, 0),)
    await gpu_node.checks(1)
    assert utilization() == {"GPU-a": 60}
    gpu_node.driver.utilization = ()
    await gpu_node.checks(1)

    assert utilization() == {}
