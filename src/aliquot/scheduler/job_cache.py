"""Pods by group, and the job that each group forms. A job is rebuilt only after it was invalidated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from aliquot.api import Pod
from aliquot.planner import Job, TaskState
from aliquot.scheduler.pending_move import PendingMove
from aliquot.scheduler.pod_groups import group_of
from aliquot.scheduler.snapshot import job_name
from aliquot.store.informer import Key


class JobCache:
    def __init__(self, build: Callable[[Key, Sequence[Pod]], Job | None], has_workload: Callable[[Key], bool]) -> None:
        """`build` makes a job of the pods of a group; None when these pods form no job. `has_workload`: whether a
        group is that of an existing workload."""
        self._build = build
        self._has_workload = has_workload
        self._groups: dict[Key, dict[str, Pod]] = {}
        self._jobs: dict[Key, Job] = {}
        self._stale: dict[Key, None] = {}  # jobs to rebuild
        self._changed: dict[str, Job | None] = {}
        self._nominated: dict[Key, Job] = {}  # jobs with a nominated task
        self._moves: dict[Key, PendingMove] = {}
        self._nonpreemptible_until: dict[Key, float] = {}

    def jobs(self, now: float) -> tuple[Job, ...]:
        """All jobs. Jobs that did not change are the same objects as before."""
        self._expire(now)
        for key in self._stale:
            before = self._jobs.get(key)
            self._rebuild(key)
            after = self._jobs.get(key)
            if after != before:
                self._changed[job_name(*key)] = after
        self._stale = {}
        return tuple(self._jobs.values())

    def take_changed(self) -> dict[str, Job | None]:
        """The jobs that `jobs` changed since the last call of this; None for a job that is gone."""
        changed, self._changed = self._changed, {}
        return changed

    def pods(self, key: Key) -> list[Pod]:
        return list(self._groups.get(key, {}).values())

    def nominated_tasks(self) -> list[tuple[str, str]]:
        """The waiting tasks that have a nomination, as job and task."""
        return [
            (job.name, task.name)
            for job in self._nominated.values()
            for task in job.tasks
            if task.state is TaskState.NOMINATED
        ]

    @property
    def protection_ends(self) -> float | None:
        """When the first job becomes preemptible again."""
        return min(self._nonpreemptible_until.values(), default=None)

    # ---------------------------------------------------------------- changes

    def add_pod(self, pod: Pod) -> None:
        key = group_key(pod)
        self._groups.setdefault(key, {})[pod.metadata.name] = pod
        self._stale[key] = None

    def remove_pod(self, pod: Pod) -> None:
        key = group_key(pod)
        self._groups.get(key, {}).pop(pod.metadata.name, None)
        self._stale[key] = None

    def replace_pod(self, pod: Pod) -> None:
        """For a pod with nothing new but its version: the next write is tied to that."""
        members = self._groups.get(group_key(pod), {})
        if pod.metadata.name in members:
            members[pod.metadata.name] = pod

    def invalidate(self, key: Key) -> None:
        self._stale[key] = None

    def invalidate_all(self, namespace: str = "") -> None:
        """Invalidates the jobs of a namespace; without one, all jobs."""
        self._stale |= dict.fromkeys(key for key in self._groups if namespace in ("", key[0]))

    def set_nonpreemptible_until(self, pod: Pod, until: float) -> None:
        self._nonpreemptible_until[group_key(pod)] = until
        self._stale[group_key(pod)] = None

    def add_pending_move(self, pod: Pod, move: PendingMove) -> None:
        self._moves[group_key(pod)] = move
        self._stale[group_key(pod)] = None

    def drop_pending_moves(self) -> None:
        self._moves.clear()

    # ---------------------------------------------------------------- rebuilding

    def _expire(self, now: float) -> None:
        for key in [key for key, move in self._moves.items() if now >= move.until]:
            del self._moves[key]
            self._stale[key] = None
        for key in [key for key, until in self._nonpreemptible_until.items() if now >= until]:
            del self._nonpreemptible_until[key]
            self._stale[key] = None

    def _rebuild(self, key: Key) -> None:
        self._nominated.pop(key, None)
        job = self._current_job(key)
        if not self._groups.get(key):
            self._groups.pop(key, None)
        if job is None:
            self._jobs.pop(key, None)
            return
        self._jobs[key] = job
        if any(task.state is TaskState.NOMINATED for task in job.tasks):
            self._nominated[key] = job

    def _current_job(self, key: Key) -> Job | None:
        pods = self.pods(key)
        built = self._build(key, pods) if pods else None
        if built is not None and key in self._nonpreemptible_until:
            built = replace(built, preemptible=False)
        move, last = self._moves.get(key), built or self._jobs.get(key)
        if move is None or last is None:
            return built
        moved = move.applied_to(last, built is not None) if self._has_workload(key) else None
        if moved is None:
            del self._moves[key]
        return moved or built


def group_key(pod: Pod) -> Key:
    return pod.metadata.namespace, group_of(pod)
