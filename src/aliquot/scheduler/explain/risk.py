"""The risk that a running job is evicted: whether its project is over quota, and until when it is protected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aliquot.planner import Job, Queue, Task, TaskState
from aliquot.planner.model import DEFAULT_POOL
from aliquot.planner.preemption import rules
from aliquot.scheduler.last_decision import Decision


class OverQuota(NamedTuple):
    """A queue that holds more than its quota, in thousandths of a GPU."""

    queue: str
    held: int
    quota: int


def queue_over_quota(decision: Decision, job: Job) -> OverQuota | None:
    """The first queue over its quota, from the job's own upwards. If there is one, other projects can reclaim from the
    job."""
    pool = _pool(decision, job)
    held = _held(decision, pool)
    for queue in _path(decision, job.queue):
        quota = queue.pool_quota(pool).quota[0]
        if quota is not None and held.get(queue.name, 0) > quota:
            return OverQuota(queue.name, held[queue.name], quota)
    return None


def protected_until(decision: Decision, job: Job) -> float | None:
    """Until when no other project may evict the job: its minimum run time is the least that its project and the
    departments above guarantee."""
    guaranteed: list[float] = []
    inherited = 0.0
    for queue in reversed(list(_path(decision, job.queue))):
        inherited = inherited if queue.reclaim_min_runtime is None else queue.reclaim_min_runtime
        guaranteed.append(inherited)
    min_runtime = min(guaranteed, default=0.0)
    return job.started + min_runtime if job.started is not None and min_runtime else None


def restart_limit_until(decision: Decision, job: Job) -> float | None:
    """Until when the job may not be evicted, because it reached the limit of restarts per hour of its pool's policy."""
    policy = decision.policies.get(_pool(decision, job), decision.policy)
    return rules.protected_until(job.stops, policy.restarts_per_hour)


def _pool(decision: Decision, job: Job) -> str:
    return next((decision.pools.get(task.node, DEFAULT_POOL) for task in job.tasks if task.node), DEFAULT_POOL)


def _path(decision: Decision, name: str) -> Iterator[Queue]:
    """A queue and its ancestors."""
    seen: set[str] = set()
    while name in decision.queues and name not in seen:
        seen.add(name)
        yield decision.queues[name]
        name = decision.queues[name].parent


def _held(decision: Decision, pool: str) -> dict[str, int]:
    """What each queue holds in a pool, including the queues below it."""
    sizes = {
        (node.name, device.index): device.memory_mib
        for node in decision.snapshot.nodes
        if node.pool == pool
        for device in node.devices
    }
    own: dict[str, int] = {}
    for job in decision.snapshot.jobs:
        amount = sum(_held_by_task(task, sizes) for task in job.tasks if decision.pools.get(task.node) == pool)
        own[job.queue] = own.get(job.queue, 0) + amount
    held: dict[str, int] = {}
    for name, amount in own.items():
        for queue in _path(decision, name):
            held[queue.name] = held.get(queue.name, 0) + amount
    return held


def _held_by_task(task: Task, sizes: dict[tuple[str, int], int]) -> int:
    if task.state is not TaskState.RUNNING:
        return 0
    first = task.shares[0].index if task.shares else -1
    return task.request.quota(sizes.get((task.node, first), 0))
