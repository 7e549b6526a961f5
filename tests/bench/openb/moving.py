"""The same arrivals where pods may be moved: for a pod that does not fit the planner consolidates.

Every pod may be moved, at once and within the disruption bound. A pod that still does not fit is dropped. Up to the
first pod that does not fit nothing differs from `harness.Ours`, so the incremental planner begins there.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner import DeviceShare, Job, Node, Policy, Snapshot, Task, TaskState
from aliquot.planner.incremental import IncrementalPlanner
from aliquot.sim.traces.openb import Pod
from bench.openb import harness

POLICY = Policy(steps=("allocate", "consolidate"), gpu="least-fragments", cpu="least-fragments", hold_after=None)


class Moving:
    def __init__(self, nodes: Sequence[Node], pods: Sequence[Pod]) -> None:
        self._plain: harness.Ours | None = harness.Ours(nodes, pods)
        self._pods: dict[str, Pod] = {}
        self._jobs: dict[str, Job] = {}
        self._planner = IncrementalPlanner()
        self._nodes, self._queues = tuple(nodes), (harness.QUEUE,)
        self._first = True
        self._changed: dict[str, Job | None] = {}  # what changed since the last plan
        self._topologies: dict[str, tuple[str, ...]] = {}
        self.moves = 0
        self.helped = 0

    def place(self, pod: Pod) -> bool:
        job = harness.job_of(pod, len(self._pods) + 1)
        self._pods[job.name] = pod
        if self._plain is not None:
            if self._plain.place(pod):
                return True
            for name, (node, shares) in self._plain.held.items():
                self._jobs[name] = self._running(name, node, shares)
            self._plain = None
        return self._plan(job)

    def _plan(self, job: Job) -> bool:
        self._jobs[job.name] = job
        snapshot = Snapshot(self._nodes, self._queues, tuple(self._jobs.values()), self._topologies)
        changed: dict[str, Job | None] = {**self._changed, job.name: job}
        decided = self._planner.plan(snapshot, POLICY, 0, changed=None if self._first else changed)
        self._first, self._changed = False, {}
        placed = [(bind.job, bind.node, bind.shares) for bind in decided.binds]
        placed += [(nomination.job, nomination.node, nomination.shares) for nomination in decided.nominations]
        placed += [
            (eviction.job, eviction.to.node, eviction.to.shares)
            for eviction in decided.evictions
            if eviction.to is not None
        ]
        for name, node, shares in placed:
            self._jobs[name] = self._changed[name] = self._running(name, node, shares)
        self.moves += len(decided.evictions)
        self.helped += bool(decided.evictions)
        if not placed:
            del self._jobs[job.name]
            self._changed[job.name] = None
        return bool(placed)

    def _running(self, name: str, node: str, shares: tuple[DeviceShare, ...]) -> Job:
        pod = self._pods[name]
        return Job(name, "all", (Task(name, pod.request, TaskState.RUNNING, node, shares, node_types=pod.models),))
