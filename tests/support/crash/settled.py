"""A cluster at rest, and what must hold then: nothing given twice, quotas kept, nobody kept waiting for nothing."""

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
from support.crash.clients import SECONDS, patiently

_FINAL = ("Completed", "Failed")


async def at_rest(driver: StoreDriver, now: float, passing: Container[str] = ()) -> Snapshot:
    """The cluster, once nothing moves in it: all that has a place runs, nobody of those who end by themselves does, and
    a plan would change nothing."""
    seen: object = None
    wrong = "not looked at yet"
    try:
        async with asyncio.timeout(2 * SECONDS):
            while True:
                snapshot, moving, versions = await _look(driver)
                decided = plan(snapshot, now=now)
                running = [job.name for job in snapshot.jobs if any(task.node for task in job.tasks)]
                ending = [name for name in running if name.partition("/")[2] in passing]
                wrong = moving or _changes(decided) or ", ".join(ending)
                if not wrong and versions == seen:
                    return snapshot
                seen = versions
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(f"it does not come to rest: {wrong}") from None


def _changes(decided: Plan) -> str:
    if not (decided.binds or decided.evictions or decided.nominations):
        return ""
    return f"binds {decided.binds[:3]}, evictions {decided.evictions[:3]}, promises {decided.nominations[:3]}"


async def _look(driver: StoreDriver) -> tuple[Snapshot, str, object]:
    store = Store(driver)
    workloads = (await patiently(lambda: store.list(Workload))).items
    pods = (await patiently(lambda: store.list(Pod))).items
    nodes = (await patiently(lambda: store.list(NodeObject))).items
    projects = (await patiently(lambda: store.list(Project))).items
    departments = (await patiently(lambda: store.list(Department))).items
    namespaces = {one.metadata.name: one for one in (await patiently(lambda: store.list(Namespace))).items}
    groups: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        if concerns_scheduler(pod):
            groups.setdefault((pod.metadata.namespace, group_of(pod)), []).append(pod)
    owners = {(one.metadata.namespace, one.metadata.name): one for one in workloads}
    by_name = {one.metadata.name: one for one in projects}
    jobs = tuple(
        job_of(
            key,
            members,
            namespaces.get(key[0]),
            by_name.get(key[0].removeprefix("runai-")),
            owners.get(key),
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
        f"workload {key[1]} is {one.status.phase} and has no pod"
        for key, one in owners.items()
        if key not in groups and one.status.phase not in _FINAL
    ]
    versions = sorted((pod.metadata.uid, pod.metadata.version) for pod in pods)
    return snapshot, "; ".join(moving[:3]), versions


class Ledger:
    """Who holds what in a snapshot, counted here and not by the scheduler."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.parent = {queue.name: queue.parent for queue in snapshot.queues}
        self.quota = {queue.name: queue.pool_quota("default").quota[0] or 0 for queue in snapshot.queues}
        self.device: Counter[tuple[str, int]] = Counter()
        self.holders: dict[tuple[str, int], list[Job]] = {}
        self.held: Counter[str] = Counter()
        self.fixed: Counter[str] = Counter()
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.RUNNING:
                    for share in task.shares:
                        self.device[task.node, share.index] += share.milli
                        self.holders.setdefault((task.node, share.index), []).append(job)
                    for queue in self._path(job.queue):
                        amount = sum(share.milli for share in task.shares)
                        self.held[queue] += amount
                        self.fixed[queue] += 0 if job.preemptible else amount

    def _path(self, queue: str) -> Iterator[str]:
        while queue:
            yield queue
            queue = self.parent.get(queue, "")

    def check(self) -> None:
        self.nothing_given_twice()
        self.fixed_work_within_quota()
        self.gangs_are_whole()
        self.nothing_idle_that_fits()
        self.nothing_borrowed_that_is_owed()

    def nothing_given_twice(self) -> None:
        over = {device: milli for device, milli in self.device.items() if milli > GPU}
        assert not over, f"more than a whole device is given out: {over}"

    def fixed_work_within_quota(self) -> None:
        over = {name: milli for name, milli in self.fixed.items() if milli > self.quota[name]}
        assert not over, f"what cannot be preempted goes beyond quota: {over} of {self.quota}"

    def gangs_are_whole(self) -> None:
        for job in self.snapshot.jobs:
            running = sum(task.state is TaskState.RUNNING for task in job.tasks)
            assert running in (0, len(job.tasks)), f"{job.name}: {running} of {len(job.tasks)} run"

    def _waiting(self) -> Iterator[tuple[Job, int, int]]:
        """Jobs of one task that wait: how many devices, and how much of each."""
        for job in self.snapshot.jobs:
            if len(job.tasks) == 1 and job.tasks[0].state is TaskState.PENDING:
                request = job.tasks[0].request
                yield job, request.devices, request.milli

    def _allowed(self, job: Job, amount: int) -> bool:
        if job.preemptible:
            return True
        return all(self.fixed[queue] + amount <= self.quota[queue] for queue in self._path(job.queue))

    def _free(self, node: Node, milli: int) -> int:
        """How many devices of a node could give so much."""
        return sum(GPU - self.device[node.name, one.index] >= milli for one in node.devices if one.healthy)

    def nothing_idle_that_fits(self) -> None:
        for job, devices, milli in self._waiting():
            if not self._allowed(job, devices * milli):
                continue
            for node in self.snapshot.nodes:
                fits = node.ready and self._free(node, milli) >= devices
                assert not fits, f"{job.name} waits for {devices} x {milli}, and {node.name} has it"

    def nothing_borrowed_that_is_owed(self) -> None:
        """Whole devices, as the simplest way to see it: a project within its quota waits, and on one node enough of
        them are idle or held by others beyond theirs alone."""
        for job, devices, milli in self._waiting():
            amount = devices * milli
            if milli != GPU or not self._allowed(job, amount):
                continue
            if any(self.held[queue] + amount > self.quota[queue] for queue in self._path(job.queue)):
                continue
            for node in self.snapshot.nodes:
                spare = Counter({queue: self.held[queue] - self.quota[queue] for queue in self.held})
                got = 0
                for one in node.devices:
                    holders = self.holders.get((node.name, one.index), [])
                    if all(self._may_go(holder, job, spare) for holder in holders):
                        got += 1
                assert got < devices, f"{job.name} is owed {devices} GPUs, and {node.name} has {got} that others borrow"

    def _may_go(self, holder: Job, job: Job, spare: Counter[str]) -> bool:
        """Whether it runs on one whole device that its side has beyond its quota. Taken once, it is less."""
        if not holder.preemptible or len(holder.tasks) != 1 or holder.queue == job.queue:
            return False
        mine, theirs = list(self._path(job.queue)), list(self._path(holder.queue))
        differ = next((queue for queue in reversed(theirs) if queue not in mine), "")
        amount = sum(share.milli for share in holder.tasks[0].shares)
        if not differ or len(holder.tasks[0].shares) != 1 or amount > spare[differ] or amount > spare[holder.queue]:
            return False
        spare[differ] -= amount
        if differ != holder.queue:
            spare[holder.queue] -= amount
        return True
