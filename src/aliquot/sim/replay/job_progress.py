"""One job while its trace is played: what it has done, what is safe, and what the scheduler sees of it.

Work goes on while it runs, except in the first moments after a restart (`pause`). What it did since its last checkpoint
is lost when it is stopped; a job that never checkpoints in between (`every` = 0) saves when it is told to stop.
"""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner.model import DeviceShare, Job, Task, TaskState
from aliquot.sim.traces import Trace, TraceJob

_TICK = 1e-6  # seconds


class Work:
    __slots__ = (
        "_every", "_restart", "attained", "contention", "destination", "done", "finished", "first", "job", "level",
        "lost", "moves", "pause", "ran", "run", "source", "started", "stops",
    )  # fmt: skip

    def __init__(self, source: TraceJob, trace: Trace, number: int = 0) -> None:
        self.source = source
        self._restart, self._every = trace.restart_cost, trace.checkpoint_every
        requests = source.requests(trace.gpus_per_node)
        tasks = tuple(
            Task(f"{source.name}-{index}", request, node_types=source.node_types)
            for index, request in enumerate(requests)
        )
        # Who came first goes first, also of those that came at the same moment.
        created = source.submit + number * _TICK
        self.job = Job(source.name, source.project, tasks, created, source.priority, source.preemptible)
        self.done = 0.0  # seconds of work that are safe
        self.ran = 0.0  # seconds on GPUs, before this run
        self.attained = 0.0  # GPU-seconds that it held, before this run
        self.lost = 0.0  # seconds on GPUs that came to nothing: work that was lost, and restarts
        self.pause = 0.0  # seconds of this run before work goes on
        self.started: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self.run = 0  # which run it is: what was expected of an earlier one is void
        self.stops = 0
        self.moves = 0
        self.level = 0
        self.contention = 0.0
        self.destination: dict[
            str, tuple[str, tuple[DeviceShare, ...]]
        ] = {}  # where it goes, by task, when it is moved

    @property
    def gpus(self) -> float:
        return self.source.gpus

    def start(self, now: float, places: dict[str, tuple[str, tuple[DeviceShare, ...]]]) -> None:
        self.started = now
        self.run += 1
        if self.first is None:
            self.first = now
        self.pause = self._restart if self.stops or self.moves else 0.0
        tasks = tuple(
            replace(task, state=TaskState.RUNNING, node=places[task.name][0], shares=places[task.name][1])
            for task in self.job.tasks
        )
        self.job = replace(self.job, tasks=tasks, started=now, saved=None)

    def ends_at(self) -> float | None:
        if self.started is None or self.source.duration is None:
            return None
        return self.started + self.pause + self.source.duration - self.done

    def save(self, now: float) -> bool:
        """Tell the scheduler of the last checkpoint. Whether that is news."""
        if not self._every or self.started is None:
            return False
        work = self.started + self.pause
        saved = int((now - work) / self._every + 1e-9)
        at = work + saved * self._every if saved > 0 else None
        if at == self.job.saved:
            return False
        self.job = replace(self.job, saved=at)
        return True

    def held(self, now: float) -> float:
        """GPU-seconds so far."""
        return self.attained + (0.0 if self.started is None else (now - self.started) * self.gpus)

    def stop(self, now: float, state: TaskState) -> None:
        """Its run ends here, unfinished; it holds its place still (`state` EVICTED), or waits."""
        assert self.started is not None
        spent = now - self.started
        work = max(0.0, spent - self.pause)
        safe = int(work / self._every + 1e-9) * self._every if self._every else work
        self.done += safe
        self.lost += spent - safe
        self._leave(now)
        self.place(state)
        self.job = replace(self.job, stops=(*self.job.stops, now))

    def finish(self, now: float) -> None:
        assert self.started is not None
        self.lost += min(self.pause, now - self.started)
        self.finished = now
        self._leave(now)

    def _leave(self, now: float) -> None:
        assert self.started is not None
        self.ran += now - self.started
        self.attained = self.held(now)
        self.started = None
        self.run += 1

    def place(self, state: TaskState) -> None:
        """All its tasks are now in a state; who waits has no place."""
        waits = state is TaskState.PENDING
        tasks = tuple(
            replace(task, state=state, node="", shares=()) if waits else replace(task, state=state)
            for task in self.job.tasks
        )
        self.job = replace(self.job, tasks=tasks, started=None, saved=None)

    def promise(self, places: dict[str, tuple[str, tuple[DeviceShare, ...]]]) -> bool:
        """A place for each of its tasks, once it is free. Whether that is new."""
        tasks = tuple(
            replace(task, state=TaskState.NOMINATED, node=places[task.name][0], shares=places[task.name][1])
            for task in self.job.tasks
        )
        if tasks == self.job.tasks:
            return False
        self.job = replace(self.job, tasks=tasks)
        return True

    def demote(self) -> None:
        self.level += 1
        self.job = replace(self.job, priority=self.source.priority - self.level)
