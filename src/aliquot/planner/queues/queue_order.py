"""The order in which waiting jobs are scheduled: at each level of the tree the queue with the smallest order key, in a
leaf queue its first job.

Jobs of a queue with the same request are a *batch*. When the first of them is refused, the others would be, too, so the
whole batch is done. A step costs as much as there are different requests, however many jobs wait.

A queue's key includes the job that it would start next, and changes only when the queue or a queue below it gains or
loses something. So each level of the tree is a heap, and only the keys of queues that changed are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from aliquot.planner.jobs import JobState
from aliquot.planner.model import Amount
from aliquot.planner.queues.queue_tree import OrderKey, QueueState

JobKey = tuple[int, int, float, str]


class Batch:
    """Jobs of one queue with the same request, in their order. The first `served` of them got what they asked for."""

    __slots__ = ("jobs", "served")

    def __init__(self, jobs: list[JobState]) -> None:
        self.jobs = jobs
        self.served = 0

    @property
    def head(self) -> JobState:
        return self.jobs[self.served]

    def remaining(self) -> list[JobState]:
        return self.jobs[self.served :] if self.served else self.jobs


class QueueOrder:
    """A priority queue of batches. `request_of` gives what a job asks for next."""

    def __init__(self, batches: Iterable[Batch], request_of: Callable[[JobState], Amount]) -> None:
        self._request_of = request_of
        self._batches: dict[QueueState, list[tuple[JobKey, Batch]]] = {}
        self._levels: dict[QueueState | None, list[tuple[OrderKey, int, QueueState]]] = {}
        self._sequence = 0  # so that heap entries of one queue never compare the queues themselves
        self._keys: dict[QueueState, OrderKey] = {}
        self._active: dict[QueueState | None, set[QueueState]] = {}
        for batch in batches:
            self._batches.setdefault(batch.head.queue, []).append((batch.head.order(), batch))
        for queue, waiting in self._batches.items():
            heapify(waiting)
            self._activate(queue)

    def _activate(self, leaf: QueueState) -> None:
        for queue in leaf.path:
            siblings = self._active.setdefault(queue.parent, set())
            if queue not in siblings:
                siblings.add(queue)
                self._levels.pop(queue.parent, None)  # built again when it is next needed

    def push(self, batch: Batch) -> None:
        """Adds a batch, perhaps again."""
        queue = batch.head.queue
        heappush(self._batches.setdefault(queue, []), (batch.head.order(), batch))
        self._activate(queue)
        self.touch(queue)

    def advance(self, batch: Batch, again: bool = True) -> None:
        """Moves on after the head of a batch got what it asked for. The rest of the batch comes again, and so does the
        head (unless `again` is False) if it has more tasks to start."""
        job = batch.head
        batch.served += 1
        self.touch(job.queue)
        if batch.served < len(batch.jobs):
            self.push(batch)
        if again and len(job.members) > 1 and job.next_tasks():
            self.push(Batch([job]))

    def touch(self, leaf: QueueState) -> None:
        """Computes the keys of a queue and of its ancestors again, after it gained or lost something."""
        for queue in leaf.path:
            siblings = self._active.get(queue.parent, ())
            if len(siblings) > 1 and queue in siblings and queue.parent in self._levels:
                self._update(queue)

    def _update(self, queue: QueueState) -> None:
        job = self._next_job(queue)
        if job is None:
            return
        key = queue.order_key(self._request_of(job))
        self._keys[queue] = key
        self._sequence += 1
        heappush(self._levels[queue.parent], (key, self._sequence, queue))

    def _next_job(self, queue: QueueState) -> JobState | None:
        """The job that would start next in this queue or below it."""
        while queue.children:
            first = self._first(queue)
            if first is None:
                return None
            queue = first
        batches = self._batches.get(queue)
        return batches[0][1].head if batches else None

    def _first(self, parent: QueueState | None) -> QueueState | None:
        """The child that comes next; None if no child has waiting jobs."""
        siblings = self._active.get(parent)
        if not siblings:
            return None
        if len(siblings) == 1:
            return next(iter(siblings))
        level = self._levels.get(parent)
        if level is None:
            self._levels[parent] = level = []
            for queue in siblings:
                self._update(queue)
        while True:
            key, _, queue = level[0]
            if queue in siblings and self._keys.get(queue) is key:
                return queue
            heappop(level)  # outdated

    def pop(self) -> Batch | None:
        """Removes the batch whose head comes next; None when none is left."""
        queue = self._first(None)
        if queue is None:
            return None
        while queue.children:
            child = self._first(queue)
            assert child is not None, "an active queue has an active child"
            queue = child
        batches = self._batches[queue]
        batch = heappop(batches)[1]
        if not batches:
            self._deactivate(queue)
        else:
            self.touch(queue)
        return batch

    def _deactivate(self, leaf: QueueState) -> None:
        """Removes a queue without waiting jobs, and each ancestor that has no other active child."""
        for queue in leaf.path:
            self._active[queue.parent].discard(queue)
            if self._active[queue.parent]:
                if queue.parent is not None:
                    self.touch(queue.parent)
                break
