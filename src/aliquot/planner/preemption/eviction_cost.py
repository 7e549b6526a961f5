"""What evicting a task costs: how much work it disrupts."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner.jobs import TaskSlot

# Less lost work than this counts as none: jobs that save a checkpoint every few seconds are equal.
_NEGLIGIBLE_SECONDS = 60.0
Cost = tuple[float, ...]


def saved_at(task: TaskSlot) -> float:
    """The start of the work that an eviction would lose: the start of the job, or its last checkpoint."""
    job = task.job.source
    if job.started is None and job.saved is None:
        return float("inf")  # no work is known to be lost
    return max(job.started if job.started is not None else job.saved or 0, job.saved or float("-inf"))


class EvictionCosts:
    """The costs of evicting tasks at one moment, computed once for each task."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._costs: dict[TaskSlot, Cost] = {}

    def set_time(self, now: float) -> None:
        """Forgets all costs unless the time is the same."""
        if now != self._now:
            self._now, self._costs = now, {}

    def of_task(self, task: TaskSlot) -> Cost:
        """Tasks, GPUs, priority, lost work in GPU-seconds, and age."""
        cost = self._costs.get(task)
        if cost is None:
            job = task.job.source
            gpu = task.amount[0]
            lost = max(0.0, self._now - saved_at(task) - _NEGLIGIBLE_SECONDS)
            cost = self._costs[task] = (1, gpu, job.priority, lost * max(gpu, 1), -job.created)
        return cost

    def forget(self, task: TaskSlot) -> None:
        self._costs.pop(task, None)

    def of_tasks(self, tasks: Sequence[TaskSlot], order: tuple[int, ...] | None = None) -> Cost:
        """A sort key, cheapest first: fewest tasks, fewest GPUs, lowest priority, least lost work, newest. `order`
        gives the parts another order."""
        if len(tasks) == 1:
            total = self.of_task(tasks[0])
        else:
            each = [self.of_task(task) for task in tasks]
            total = (
                len(each),
                sum(cost[1] for cost in each),
                max(cost[2] for cost in each),
                sum(cost[3] for cost in each),
                min(cost[4] for cost in each),
            )
        return total if order is None else tuple(total[i] for i in order)
