"""What evicting tasks costs: how much work it disturbs."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner.jobs import TaskSlot

# So much work lost is as good as none: jobs that save theirs every few seconds are alike, whoever did so last.
_NEGLIGIBLE_SECONDS = 60.0
Cost = tuple[float, ...]


def saved_at(member: TaskSlot) -> float:
    """Since when its work would be lost: it started, or saved what it had done."""
    job = member.job.source
    if job.started is None and job.saved is None:
        return float("inf")  # nothing is known to be lost
    return max(job.started if job.started is not None else job.saved or 0, job.saved or float("-inf"))


class EvictionCosts:
    """How much stopping tasks disturbs."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._known: dict[TaskSlot, Cost] = {}

    def set_time(self, now: float) -> None:
        """From now on as of another moment."""
        if now != self._now:
            self._now, self._known = now, {}

    def one(self, member: TaskSlot) -> Cost:
        """Tasks, GPUs, priority, work lost in GPU-seconds, and how old it is."""
        found = self._known.get(member)
        if found is None:
            job = member.job.source
            gpu = member.amount[0]
            lost = max(0.0, self._now - saved_at(member) - _NEGLIGIBLE_SECONDS)
            found = (1, gpu, job.priority, lost * max(gpu, 1), -job.created)
            self._known[member] = found
        return found

    def forget(self, member: TaskSlot) -> None:
        self._known.pop(member, None)

    def of(self, members: Sequence[TaskSlot], order: tuple[int, ...] | None = None) -> Cost:
        """Fewest tasks, fewest GPUs, lowest priority, least work lost, newest; or in another order."""
        if len(members) == 1:
            total = self.one(members[0])
        else:
            each = [self.one(member) for member in members]
            total = (
                len(each),
                sum(one[1] for one in each),
                max(one[2] for one in each),
                sum(one[3] for one in each),
                min(one[4] for one in each),
            )
        return total if order is None else tuple(total[i] for i in order)
