"""Waits until a cluster is in steady state, and checks what must hold then.

No device is overcommitted, quotas hold, gangs are complete, and no job waits for capacity that it could have.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Iterator

from aliquot.api import Department, Namespace, Pod, Project, Workload
from aliquot.api import Node as NodeObject
from aliquot.planner import Job, Node, Plan, Snapshot, TaskState, plan
from aliquot.planner.model import GPU
from aliquot.scheduler.eviction_records import eviction_record_of
from aliquot.scheduler.pod_groups import group_of
from aliquot.scheduler.snapshot import concerns_scheduler, job_of, node_of, queues_of
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store
from support.crash.clients import SECONDS, retry_while_unavailable

_FINAL = ("Completed", "Failed")


async def wait_for_steady_state(driver: StoreDriver, now: float, passing: Container[str] = ()) -> Snapshot:
    """The cluster in steady state: every pod with a node runs, the jobs that end by themselves (`passing`) have ended,
    and a plan would change nothing."""
    seen: object = None
    wrong = "not checked yet"
    try:
        async with asyncio.timeout(2 * SECONDS):
            while True:
                snapshot, moving, versions = await _read(driver)
                decided = plan(snapshot, now=now)
                running = [job.name for job in snapshot.jobs if any(task.node for task in job.tasks)]
                ending = [name for name in running if name.partition("/")[2] in passing]
                wrong = moving or _changes(decided) or ", ".join(ending)
                if not wrong and versions == seen:
                    return snapshot
                seen = versions
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(f"the cluster reaches no steady state: {wrong}") from None


def _changes(decided: Plan) -> str:
    if not (decided.binds or decided.evictions or decided.nominations):
        return ""
    return f"binds {decided.binds[:3]}, evictions {decided.evictions[:3]}, nominations {decided.nominations[:3]}"


async def _read(driver: StoreDriver) -> tuple[Snapshot, str, object]:
    store = Store(driver)
    workloads = (await retry_while_unavailable(lambda: store.list(Workload))).items
    pods = (await retry_while_unavailable(lambda: store.list(Pod))).items
    nodes = (await retry_while_unavailable(lambda: store.list(NodeObject))).items
    projects = (await retry_while_unavailable(lambda: store.list(Project))).items
    departments = (await retry_while_unavailable(lambda: store.list(Department))).items
    namespaces = {
        namespace.metadata.name: namespace
        for namespace in (await retry_while_unavailable(lambda: store.list(Namespace))).items
    }
    groups: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        if concerns_scheduler(pod):
            groups.setdefault((pod.metadata.namespace, group_of(pod)), []).append(pod)
    workload_of = {(workload.metadata.namespace, workload.metadata.name): workload for workload in workloads}
    project_of = {project.metadata.name: project for project in projects}
    jobs = tuple(
        job_of(
            key,
            members,
            namespaces.get(key[0]),
            project_of.get(key[0].removeprefix("runai-")),
            workload_of.get(key),
            {},
        )
        for key, members in groups.items()
    )
    snapshot = Snapshot(tuple(map(node_of, nodes)), tuple(queues_of(projects, departments)), jobs)
    moving = [
        f"pod {pod.metadata.name} is {pod.status.phase}"
        for pod in pods
        if pod.metadata.deleted is not None
        or eviction_record_of(pod) is not None
        or (pod.spec.node_name and pod.status.phase not in ("Running", "Succeeded", "Failed"))
    ]
    moving += [
        f"workload {key[1]} is {workload.status.phase} and has no pod"
        for key, workload in workload_of.items()
        if key not in groups and workload.status.phase not in _FINAL
    ]
    versions = sorted((pod.metadata.uid, pod.metadata.version) for pod in pods)
    return snapshot, "; ".join(moving[:3]), versions


class AllocationCheck:
    """Checks the allocations of a snapshot, counted independently of the scheduler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.parent = {queue.name: queue.parent for queue in snapshot.queues}
        self.quota = {queue.name: queue.pool_quota("default").quota[0] or 0 for queue in snapshot.queues}
        self.device: Counter[tuple[str, int]] = Counter()
        self.holders: dict[tuple[str, int], list[Job]] = {}
        self.held: Counter[str] = Counter()
        self.nonpreemptible: Counter[str] = Counter()
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.RUNNING:
                    for share in task.shares:
                        self.device[task.node, share.index] += share.milli
                        self.holders.setdefault((task.node, share.index), []).append(job)
                    for queue in self._ancestors(job.queue):
                        amount = sum(share.milli for share in task.shares)
                        self.held[queue] += amount
                        self.nonpreemptible[queue] += 0 if job.preemptible else amount

    def _ancestors(self, queue: str) -> Iterator[str]:
        while queue:
            yield queue
            queue = self.parent.get(queue, "")

    def check(self) -> None:
        self.check_devices()
        self.check_quota()
        self.check_gangs()
        self.check_idle_devices()
        self.check_reclaimable_devices()

    def check_devices(self) -> None:
        over = {device: milli for device, milli in self.device.items() if milli > GPU}
        assert not over, f"more than a whole device is allocated: {over}"

    def check_quota(self) -> None:
        over = {name: milli for name, milli in self.nonpreemptible.items() if milli > self.quota[name]}
        assert not over, f"nonpreemptible jobs exceed their quota: {over} of {self.quota}"

    def check_gangs(self) -> None:
        for job in self.snapshot.jobs:
            running = sum(task.state is TaskState.RUNNING for task in job.tasks)
            assert running in (0, len(job.tasks)), f"{job.name}: {running} of {len(job.tasks)} run"

    def _waiting(self) -> Iterator[tuple[Job, int, int]]:
        """Waiting jobs of one task, with their number of devices and the share of each."""
        for job in self.snapshot.jobs:
            if len(job.tasks) == 1 and job.tasks[0].state is TaskState.PENDING:
                request = job.tasks[0].request
                yield job, request.devices, request.milli

    def _allowed(self, job: Job, amount: int) -> bool:
        if job.preemptible:
            return True
        return all(self.nonpreemptible[queue] + amount <= self.quota[queue] for queue in self._ancestors(job.queue))

    def _free(self, node: Node, milli: int) -> int:
        """The number of healthy devices of a node with this much free."""
        return sum(GPU - self.device[node.name, device.index] >= milli for device in node.devices if device.healthy)

    def check_idle_devices(self) -> None:
        for job, devices, milli in self._waiting():
            if not self._allowed(job, devices * milli):
                continue
            for node in self.snapshot.nodes:
                fits = node.ready and self._free(node, milli) >= devices
                assert not fits, f"{job.name} waits for {devices} x {milli}, and {node.name} has it"

    def check_reclaimable_devices(self) -> None:
        """No project within its quota waits while one node has enough devices that are idle or held only by queues
        beyond their quota. Checked for whole devices only, which is simple."""
        for job, devices, milli in self._waiting():
            amount = devices * milli
            if milli != GPU or not self._allowed(job, amount):
                continue
            if any(self.held[queue] + amount > self.quota[queue] for queue in self._ancestors(job.queue)):
                continue
            for node in self.snapshot.nodes:
                over_quota = Counter({queue: self.held[queue] - self.quota[queue] for queue in self.held})
                available = 0
                for device in node.devices:
                    holders = self.holders.get((node.name, device.index), [])
                    if all(self._reclaimable(holder, job, over_quota) for holder in holders):
                        available += 1
                assert available < devices, f"{job.name} may reclaim {devices} GPUs, and {node.name} has {available}"

    def _reclaimable(self, holder: Job, job: Job, over_quota: Counter[str]) -> bool:
        """Whether the holder has one whole device beyond the quota of its queues; subtracts it from `over_quota`."""
        if not holder.preemptible or len(holder.tasks) != 1 or holder.queue == job.queue:
            return False
        own, other = list(self._ancestors(job.queue)), list(self._ancestors(holder.queue))
        differ = next((queue for queue in reversed(other) if queue not in own), "")
        amount = sum(share.milli for share in holder.tasks[0].shares)
        if (
            not differ
            or len(holder.tasks[0].shares) != 1
            or amount > over_quota[differ]
            or amount > over_quota[holder.queue]
        ):
            return False
        over_quota[differ] -= amount
        if differ != holder.queue:
            over_quota[holder.queue] -= amount
        return True
