"""A workload that is being moved: its pod is stopping, and its new place is held until the next pod arrives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.planner import DeviceShare, Job, Task, TaskState


@dataclass(frozen=True, slots=True)
class PendingMove:
    """Where the workload continues. Kept in memory only: after a crash the workload queues like any other."""

    node: str
    shares: tuple[DeviceShare, ...]
    until: float

    def applied_to(self, job: Job, has_pods: bool) -> Job | None:
        """The job with its new place nominated, for the new pod or for one that does not exist yet. None when the move
        is over."""
        states = [task.state for task in job.tasks]
        if not has_pods:
            return replace(job, tasks=(self._future_task(job.tasks[0]),), min_available=1)
        if TaskState.PENDING in states:
            tasks = (
                replace(task, state=TaskState.NOMINATED, node=self.node, shares=self.shares)
                if task.state is TaskState.PENDING
                else task
                for task in job.tasks
            )
            return replace(job, tasks=tuple(tasks))
        if set(states) == {TaskState.RELEASING}:
            return replace(job, tasks=(*job.tasks, self._future_task(job.tasks[0])), min_available=1)
        return None

    def _future_task(self, task: Task) -> Task:
        """A nominated task for the pod to come. Its name ends with a quote, so that no pod has it."""
        name = task.name.rstrip("'") + "'"
        return replace(
            task, name=name, state=TaskState.NOMINATED, node=self.node, shares=self.shares, releasing_since=None
        )
