"""The progress of one job during a replay, and the `Job` that the planner sees of it.

A running job makes progress, except for the first seconds after a restart (`pause`). Progress since the last checkpoint
is lost when the job is stopped. A job without periodic checkpoints (`checkpoint_every` = 0) saves when it is stopped.
"""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner.model import DeviceShare, Job, Task, TaskState
from aliquot.sim.traces import Trace, TraceJob

_TICK = 1e-6  # seconds
# Node and shares by task.
Placements = dict[str, tuple[str, tuple[DeviceShare, ...]]]


class JobProgress:
    __slots__ = (
        "_checkpoint_every", "_restart_cost", "attained", "contention", "destination", "done", "finished", "first",
        "job", "level", "lost", "moves", "pause", "ran", "run", "started", "stops", "trace_job",
    )  # fmt: skip

    def __init__(self, trace_job: TraceJob, trace: Trace, number: int = 0) -> None:
        self.trace_job = trace_job
        self._restart_cost, self._checkpoint_every = trace.restart_cost, trace.checkpoint_every
        requests = trace_job.requests(trace.gpus_per_node)
        tasks = tuple(
            Task(f"{trace_job.name}-{index}", request, node_types=trace_job.node_types)
            for index, request in enumerate(requests)
        )
        # Jobs of the same moment keep their order of submission.
        created = trace_job.submit + number * _TICK
        self.job = Job(trace_job.name, trace_job.project, tasks, created, trace_job.priority, trace_job.preemptible)
        self.done = 0.0  # seconds of progress that a stop does not lose
        self.ran = 0.0  # seconds on GPUs, without this run
        self.attained = 0.0  # GPU-seconds, without this run
        self.lost = 0.0  # seconds on GPUs without progress: lost progress, and restarts
        self.pause = 0.0  # seconds of this run before it makes progress
        self.started: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self.run = 0  # counts starts and stops: events of an earlier run are outdated
        self.stops = 0
        self.moves = 0
        self.level = 0
        self.contention = 0.0
        self.destination: Placements = {}  # where its tasks go when it is moved

    @property
    def gpus(self) -> float:
        return self.trace_job.gpus

    def start(self, now: float, placements: Placements) -> None:
        self.started = now
        self.run += 1
        if self.first is None:
            self.first = now
        self.pause = self._restart_cost if self.stops or self.moves else 0.0
        tasks = tuple(
            replace(task, state=TaskState.RUNNING, node=placements[task.name][0], shares=placements[task.name][1])
            for task in self.job.tasks
        )
        self.job = replace(self.job, tasks=tasks, started=now, saved=None)

    def ends_at(self) -> float | None:
        if self.started is None or self.trace_job.duration is None:
            return None
        return self.started + self.pause + self.trace_job.duration - self.done

    def save(self, now: float) -> bool:
        """Update the job's last checkpoint; return whether it changed."""
        if not self._checkpoint_every or self.started is None:
            return False
        progress_from = self.started + self.pause
        checkpoints = int((now - progress_from) / self._checkpoint_every + 1e-9)
        saved = progress_from + checkpoints * self._checkpoint_every if checkpoints > 0 else None
        if saved == self.job.saved:
            return False
        self.job = replace(self.job, saved=saved)
        return True

    def held(self, now: float) -> float:
        """GPU-seconds so far."""
        return self.attained + (0.0 if self.started is None else (now - self.started) * self.gpus)

    def stop(self, now: float, state: TaskState) -> None:
        """End the run unfinished. With `state` EVICTED the job keeps its devices; otherwise it waits."""
        assert self.started is not None
        spent = now - self.started
        progress = max(0.0, spent - self.pause)
        every = self._checkpoint_every
        saved = int(progress / every + 1e-9) * every if every else progress
        self.done += saved
        self.lost += spent - saved
        self._end_run(now)
        self.set_state(state)
        self.job = replace(self.job, stops=(*self.job.stops, now))

    def finish(self, now: float) -> None:
        assert self.started is not None
        self.lost += min(self.pause, now - self.started)
        self.finished = now
        self._end_run(now)

    def _end_run(self, now: float) -> None:
        assert self.started is not None
        self.ran += now - self.started
        self.attained = self.held(now)
        self.started = None
        self.run += 1

    def set_state(self, state: TaskState) -> None:
        """Set the state of all tasks; pending tasks lose their node and devices."""
        pending = state is TaskState.PENDING
        tasks = tuple(
            replace(task, state=state, node="", shares=()) if pending else replace(task, state=state)
            for task in self.job.tasks
        )
        self.job = replace(self.job, tasks=tasks, started=None, saved=None)

    def nominate(self, placements: Placements) -> bool:
        """Nominate all tasks; return whether that changed anything."""
        tasks = tuple(
            replace(task, state=TaskState.NOMINATED, node=placements[task.name][0], shares=placements[task.name][1])
            for task in self.job.tasks
        )
        if tasks == self.job.tasks:
            return False
        self.job = replace(self.job, tasks=tasks)
        return True

    def demote(self) -> None:
        self.level += 1
        self.job = replace(self.job, priority=self.trace_job.priority - self.level)
