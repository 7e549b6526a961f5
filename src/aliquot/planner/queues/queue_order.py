"""Whose turn it is: at each level of the tree the queue that deserves it most, in a leaf the next job.

Jobs of a queue that ask for the same are a *batch*: when the first of them is refused, so would the others be, and all
of them have had their turn. So a step costs as much as there are kinds of requests, however many jobs wait.

A queue is judged together with the job it would start, and its standing changes only when it or somebody below it gets
or loses something. So each level is a heap of standings that are made anew just for the queues that were touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from aliquot.planner.jobs import JobState
from aliquot.planner.model import Amount
from aliquot.planner.queues.queue_tree import OrderKey, QueueState

JobKey = tuple[int, int, float, str]


class Batch:
    """Jobs of one queue that are alike, in their order. Those before `served` have what they asked for."""

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
    def __init__(self, batches: Iterable[Batch], asks: Callable[[JobState], Amount]) -> None:
        self._asks = asks
        self._batches: dict[QueueState, list[tuple[JobKey, Batch]]] = {}
        self._levels: dict[QueueState | None, list[tuple[OrderKey, int, QueueState]]] = {}
        self._count = 0  # so that two standings of one queue are never compared further
        self._standing: dict[QueueState, OrderKey] = {}
        self._active: dict[QueueState | None, set[QueueState]] = {}
        for batch in batches:
            self._batches.setdefault(batch.head.queue, []).append((batch.head.order(), batch))
        for queue, waiting in self._batches.items():
            heapify(waiting)
            self._activate(queue)

    def _activate(self, queue: QueueState) -> None:
        for one in queue.path:
            rivals = self._active.setdefault(one.parent, set())
            if one not in rivals:
                rivals.add(one)
                self._levels.pop(one.parent, None)  # made anew when it is next asked for

    def push(self, batch: Batch) -> None:
        """A batch that may have another turn."""
        queue = batch.head.queue
        heappush(self._batches.setdefault(queue, []), (batch.head.order(), batch))
        self._activate(queue)
        self.touch(queue)

    def advance(self, batch: Batch, again: bool = True) -> None:
        """The head got what it asked for: the next of its batch has its turn, and it too (`again`) if it has more to
        start."""
        job = batch.head
        batch.served += 1
        self.touch(job.queue)
        if batch.served < len(batch.jobs):
            self.push(batch)
        if again and len(job.members) > 1 and job.next_tasks():
            self.push(Batch([job]))

    def touch(self, queue: QueueState) -> None:
        """A queue got or lost something: see how it and those above it stand now."""
        for one in queue.path:
            rivals = self._active.get(one.parent, ())
            if len(rivals) > 1 and one in rivals and one.parent in self._levels:
                self._stand(one)

    def _stand(self, queue: QueueState) -> None:
        job = self._next(queue)
        if job is None:
            return
        key = queue.order_key(self._asks(job))
        self._standing[queue] = key
        self._count += 1
        heappush(self._levels[queue.parent], (key, self._count, queue))

    def _next(self, queue: QueueState) -> JobState | None:
        """The job that would start if it were this queue's turn."""
        while queue.children:
            best = self._best(queue)
            if best is None:
                return None
            queue = best
        batches = self._batches.get(queue)
        return batches[0][1].head if batches else None

    def _best(self, parent: QueueState | None) -> QueueState | None:
        rivals = self._active.get(parent)
        if not rivals:
            return None
        if len(rivals) == 1:
            return next(iter(rivals))
        level = self._levels.get(parent)
        if level is None:
            self._levels[parent] = level = []
            for queue in rivals:
                self._stand(queue)
        while True:
            key, _, queue = level[0]
            if queue in rivals and self._standing.get(queue) is key:
                return queue
            heappop(level)

    def pop(self) -> Batch | None:
        """The batch whose head is next; None when all had their turn."""
        queue = self._best(None)
        if queue is None:
            return None
        while queue.children:
            below = self._best(queue)
            assert below is not None, "an active queue has somebody active below it"
            queue = below
        batches = self._batches[queue]
        batch = heappop(batches)[1]
        if not batches:
            self._retire(queue)
        else:
            self.touch(queue)
        return batch

    def _retire(self, queue: QueueState) -> None:
        """Take a queue without jobs out, and those above it that have nobody left."""
        for one in queue.path:
            self._active[one.parent].discard(one)
            if self._active[one.parent]:
                if one.parent is not None:
                    self.touch(one.parent)
                break
