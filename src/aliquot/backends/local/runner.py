"""Carries out what the machine decides, and tells it what happened.

    store --(informer)--> events --> machine.step --> commands --> runtime, timers, status writes --> events ...

One agent serves all nodes of its `Devices`. After a start it looks first at what is left on disk, so that pods that
run keep what they hold, and only then at what the store wants. It keeps nothing that it could not find again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from aliquot.api import Pod
from aliquot.backends.local import state_machine
from aliquot.backends.local.checkpoint_gc import CheckpointGc
from aliquot.backends.local.devices.node_devices import Devices
from aliquot.backends.local.launch import ImageResolver, assignment_of, launch_of, rejection_of
from aliquot.backends.local.node_registration import NodeRegistrar
from aliquot.backends.local.pod_status import status_of
from aliquot.backends.local.runtime import CannotStart, Ended, PodAssignment, Runtime, Started
from aliquot.backends.local.state_machine import Backoff, Event, Stage, State
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Conflict, Invalid, NotFound
from aliquot.scheduler.eviction_records import eviction_record_of, preemption_message
from aliquot.store.informer import Informer, Key, typed
from aliquot.store.typed_store import Store

log = structlog.get_logger()
_FINAL = ("Succeeded", "Failed")
_TRIES = 5  # a status that lost five races in a row is tried again a little later


class Agent:
    """Runs the pods that the store places on our nodes, until cancelled. The pods stay when it goes."""

    def __init__(
        self,
        store: Store,
        devices: Devices,
        runtime: Runtime,
        images: ImageResolver,
        *,
        pods: Informer[Pod] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._devices = devices
        self._runtime = runtime
        self._images = images
        self._clock = clock
        nodes = {facts.name: {device.index: device.memory_mib for device in facts.devices} for facts in devices.nodes()}
        self._state = State(nodes, backoff)
        # Shared with others and run by them, or our own.
        self._pods: Informer[Pod] = typed(store.driver, Pod) if pods is None else pods
        self._runs_pods = pods is None
        self._keys: dict[str, Key] = {}  # uid -> namespace, name
        self._reports: dict[str, state_machine.Task] = {}
        self._confirmed: set[str] = set()
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._writes = Controller("agent", self._write)
        self._leftovers = CheckpointGc(store.driver, runtime)
        self._nodes = NodeRegistrar(store, devices, clock)
        self._work: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        self._runtime.on_end = self._on_end
        self._runtime.on_saved = self._on_saved
        await self._nodes.register()
        try:
            async with asyncio.TaskGroup() as group:
                self._work = group
                if self._runs_pods:
                    group.create_task(self._pods.run())
                group.create_task(self._writes.run())
                group.create_task(self._leftovers.workloads.run())
                await self._pods.synced.wait()
                await self._take_over()
                await asyncio.to_thread(self._devices.sweep, frozenset(self._state.tasks))
                group.create_task(self._nodes.run())
                self._pods.listen(self._changed)
                self._runtime.finished = self._finished
                group.create_task(self._leftovers.run())
        finally:
            self._runtime.on_end = lambda uid, ended: None  # what ends from now on is the next agent's to find
            self._runtime.on_saved = lambda uid, at: None
            self._runtime.finished = lambda uid: False
            for timer in self._timers.values():
                timer.cancel()

    def assignments(self) -> list[PodAssignment]:
        """Of the pods that hold something here."""
        return [task.assignment for task in self._state.tasks.values() if task.stage is not Stage.ENDED]

    # --- events

    async def _take_over(self) -> None:
        """What ran before us runs on: it is told of first, so that nobody else is given what it holds.

        Of those that the store has no more we first find out who is still alive: the store has given their devices to
        others, who would be refused for somebody who ended long ago.
        """
        pods = {pod.metadata.uid: pod for pod in self._pods}
        now = self._clock()
        gone: set[str] = set()
        for trace in self._runtime.traces():
            pod = pods.get(trace.assignment.uid)
            if pod is not None and pod.status.phase in _FINAL:
                continue
            self._keys[trace.assignment.uid] = (trace.assignment.namespace, trace.assignment.name)
            self._feed(state_machine.Wanted(trace.assignment, now, trace.attempt, found=True))
            if pod is None:
                gone.add(trace.assignment.uid)
                self._feed(state_machine.Gone(trace.assignment.uid, now))
        while any(uid in gone and task.stage is Stage.STARTING for uid, task in self._state.tasks.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # a machine's state rings no bell

    def _changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if old is not None and self._is_ours(old) and (new is None or new.metadata.uid != old.metadata.uid):
            self._feed(state_machine.Gone(old.metadata.uid, self._clock()))
        if new is not None and self._is_ours(new):
            self._keys[new.metadata.uid] = key
            self._seen(new)

    def _is_ours(self, pod: Pod) -> bool:
        return pod.spec.node_name in self._state.devices

    def _seen(self, pod: Pod) -> None:
        now, place = self._clock(), pod.metadata
        if place.deleted is not None:
            # The store writes whole seconds, rounded down: nobody is to lose a part of a short grace to that.
            left = min(place.grace_seconds or 0, place.deleted + 1 - now)
            self._feed(state_machine.Unwanted(place.uid, max(0.0, left), now))
        elif pod.status.phase not in _FINAL and place.uid not in self._state.tasks:
            self._feed(self._wanted(pod, now))

    def _wanted(self, pod: Pod, now: float) -> state_machine.Wanted:
        attempt = max((status.restart_count for status in pod.status.container_statuses), default=0)
        try:
            assignment = assignment_of(pod)
        except Invalid as exc:
            bare = replace(pod.metadata, annotations={})
            return state_machine.Wanted(assignment_of(replace(pod, metadata=bare)), now, attempt, problem=str(exc))
        return state_machine.Wanted(assignment, now, attempt, problem=rejection_of(pod, assignment))

    def _on_end(self, uid: str, ended: Ended) -> None:
        self._feed(_exited(uid, ended))

    def _on_saved(self, uid: str, at: float) -> None:
        self._feed(state_machine.Saved(uid, at))

    def _finished(self, uid: str) -> bool:
        task = self._state.tasks.get(uid)
        return task is None or task.stage is Stage.ENDED

    def _feed(self, event: Event) -> None:
        if isinstance(event, state_machine.Wanted):
            self._leftovers.used(event.assignment)
        self._state, commands = state_machine.step(self._state, event)
        for command in commands:
            self._do(command)

    # --- commands

    def _do(self, command: state_machine.Command) -> None:
        match command:
            case state_machine.Start(uid, attempt):
                self._spawn(self._start(uid, attempt))
            case state_machine.Signal(uid, name):
                if name == "TERM":
                    self._announce(uid)
                self._runtime.signal(uid, name)
            case state_machine.SetTimer(uid, timer, at):
                self._set_timer(uid, timer, at)
            case state_machine.Report(uid, task):
                self._reports[uid] = task
                self._writes.enqueue((uid, ""))
                if task.stage is Stage.ENDED:  # for good: nothing of it will use its devices any more
                    self._spawn(self._release(uid))
            case state_machine.ConfirmDeletion(uid):
                self._confirmed.add(uid)
                self._writes.enqueue((uid, ""))
            case state_machine.Remove(uid):
                self._forget(uid)
                self._spawn(self._remove(uid))

    def _announce(self, uid: str) -> None:
        """Who is stopped for others finds out why, for whom and until when, before it gets its TERM."""
        pod = self._pod(uid)
        notice = None if pod is None else eviction_record_of(pod)
        if pod is not None and notice is not None:
            self._runtime.tell(uid, preemption_message(notice, pod.metadata.deleted))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._work is not None, "events come only while it runs"
        try:
            self._work.create_task(work)
        except RuntimeError:  # we are ending: what is left to do is the next agent's to find
            work.close()

    async def _start(self, uid: str, attempt: int) -> None:
        try:
            found = await self._runtime.resume(uid, attempt) or await self._launch(uid, attempt)
        except CannotStart as exc:
            self._feed(state_machine.StartFailed(uid, attempt, exc.reason, exc.message, exc.code, self._clock()))
        except Exception:  # one pod that breaks us must not take the others along
            log.exception("start failed", pod=uid)
            problem = "the agent failed to start it; its log says why"
            self._feed(state_machine.StartFailed(uid, attempt, "CreateContainerError", problem, 128, self._clock()))
        else:
            self._feed(_exited(uid, found) if isinstance(found, Ended) else _started(uid, found))

    async def _remove(self, uid: str) -> None:
        try:
            await self._runtime.remove(uid)
            await self._release(uid)
            self._leftovers.left(uid)
        except Exception:  # its files stay; the next start finds and removes them
            log.exception("remove failed", pod=uid)

    async def _release(self, uid: str) -> None:
        try:
            await asyncio.to_thread(self._devices.release, uid)
        except OSError:  # what is left is swept away at the next start
            log.exception("devices not released", pod=uid)

    async def _launch(self, uid: str, attempt: int) -> Started | Ended:
        pod = self._pod(uid)
        task = self._state.tasks.get(uid)
        if pod is None or task is None:
            raise CannotStart("CreateContainerError", "the pod is gone")
        # Not on the event loop: a daemon may have to be started for it.
        launch = await asyncio.to_thread(launch_of, pod, task.assignment, attempt, self._devices, self._images)
        return await self._runtime.start(launch)

    def _set_timer(self, uid: str, timer: state_machine.Timer, at: float) -> None:
        if old := self._timers.pop((uid, timer), None):
            old.cancel()
        pause = max(0.0, at - self._clock())
        self._timers[uid, timer] = asyncio.get_running_loop().call_later(pause, self._fire, uid, timer)

    def _fire(self, uid: str, timer: state_machine.Timer) -> None:
        self._timers.pop((uid, timer), None)
        self._feed(state_machine.Fired(uid, timer, self._clock()))

    def _forget(self, uid: str) -> None:
        self._keys.pop(uid, None)
        self._reports.pop(uid, None)
        self._confirmed.discard(uid)
        for timer in ("kill", "restart"):
            if handle := self._timers.pop((uid, timer), None):
                handle.cancel()

    # --- the store

    def _pod(self, uid: str) -> Pod | None:
        namespace, name = self._keys.get(uid, ("", ""))
        pod = self._pods.get(name, namespace)
        return pod if pod is not None and pod.metadata.uid == uid else None

    async def _write(self, key: Key) -> None:
        """The newest status of one pod, then the confirmation that it may go."""
        uid = key[0]
        pod = self._pod(uid)
        if pod is None:
            return
        try:
            if (task := self._reports.get(uid)) is not None:
                await self._report(pod, task)
                if self._reports.get(uid) is task:
                    del self._reports[uid]
            if uid in self._confirmed:
                await self._store.delete(pod, grace_seconds=0)
                self._confirmed.discard(uid)
        except NotFound:
            return  # gone meanwhile; the informer will say so

    async def _report(self, pod: Pod, task: state_machine.Task) -> None:
        for _ in range(_TRIES):
            status = status_of(task, pod, self._state.backoff)
            try:
                await self._store.update_status(replace(pod, status=status), seen=pod)
                return
            except Conflict:
                pod = await self._store.get(Pod, pod.metadata.name, pod.metadata.namespace)
                if pod.metadata.uid != task.assignment.uid:
                    return
        raise Conflict(f"pod {pod.metadata.name} changes faster than its status can be written")


def _started(uid: str, found: Started) -> state_machine.Started:
    return state_machine.Started(uid, found.attempt, found.at)


def _exited(uid: str, ended: Ended) -> state_machine.Exited:
    return state_machine.Exited(
        uid,
        ended.attempt,
        ended.code,
        ended.started,
        ended.finished,
        reason=ended.reason,
        message=ended.message,
        saved=ended.saved,
    )
