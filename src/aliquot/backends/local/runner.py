"""The agent: feeds events to the state machine and carries out its commands.

    store --(informer)--> events --> state_machine.step --> commands --> runtime, timers, status writes --> events ...

One agent serves all nodes of its `Devices`. At its start it first recovers pods from disk, so that running pods keep
their devices, and only then reads the pods in the store. It keeps no state that it could not recover.
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
_MAX_CONFLICTS = 5  # after this many conflicts in a row the workqueue retries a status later


class Agent:
    """Runs the pods that are bound to our nodes, until cancelled. The pods run on without it."""

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
        # Shared and run by the caller, or our own.
        self._pods: Informer[Pod] = typed(store.driver, Pod) if pods is None else pods
        self._owns_informer = pods is None
        self._keys: dict[str, Key] = {}  # uid -> namespace, name
        self._reports: dict[str, state_machine.Task] = {}  # statuses to write, by uid
        self._confirmed: set[str] = set()  # uids of pods whose deletion may be completed
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._writes = Controller("agent", self._write)
        self._checkpoint_gc = CheckpointGc(store.driver, runtime)
        self._nodes = NodeRegistrar(store, devices, clock)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        self._runtime.on_end = self._on_end
        self._runtime.on_saved = self._on_saved
        await self._nodes.register()
        try:
            async with asyncio.TaskGroup() as group:
                self._tasks = group
                if self._owns_informer:
                    group.create_task(self._pods.run())
                group.create_task(self._writes.run())
                group.create_task(self._checkpoint_gc.workloads.run())
                await self._pods.synced.wait()
                await self._recover()
                await asyncio.to_thread(self._devices.sweep, frozenset(self._state.tasks))
                group.create_task(self._nodes.run())
                self._pods.listen(self._changed)
                self._runtime.has_ended = self._has_ended
                group.create_task(self._checkpoint_gc.run())
        finally:
            self._runtime.on_end = lambda uid, ended: None  # the next agent finds pods that end from now on
            self._runtime.on_saved = lambda uid, at: None
            self._runtime.has_ended = lambda uid: False
            for timer in self._timers.values():
                timer.cancel()

    def assignments(self) -> list[PodAssignment]:
        """The pods that hold devices or run here."""
        return [task.assignment for task in self._state.tasks.values() if task.stage is not Stage.ENDED]

    # --- events

    async def _recover(self) -> None:
        """Feed the pods found on disk before any pod of the store, so that no other pod gets their devices.

        For pods that are no longer in the store, wait until it is known whether they are alive: the scheduler has given
        their devices to other pods, which must not be rejected because of a pod that ended long ago.
        """
        pods = {pod.metadata.uid: pod for pod in self._pods}
        now = self._clock()
        deleted: set[str] = set()
        for recovered in self._runtime.recover_pods():
            assignment = recovered.assignment
            pod = pods.get(assignment.uid)
            if pod is not None and pod.status.phase in _FINAL:
                continue
            self._keys[assignment.uid] = (assignment.namespace, assignment.name)
            self._feed(state_machine.PodAssigned(assignment, now, recovered.attempt, recovered=True))
            if pod is None:
                deleted.add(assignment.uid)
                self._feed(state_machine.PodDeleted(assignment.uid, now))
        while any(uid in deleted and task.stage is Stage.STARTING for uid, task in self._state.tasks.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # the state machine has no event for this condition

    def _changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if old is not None and self._is_ours(old) and (new is None or new.metadata.uid != old.metadata.uid):
            self._feed(state_machine.PodDeleted(old.metadata.uid, self._clock()))
        if new is not None and self._is_ours(new):
            self._keys[new.metadata.uid] = key
            self._observe(new)

    def _is_ours(self, pod: Pod) -> bool:
        return pod.spec.node_name in self._state.devices

    def _observe(self, pod: Pod) -> None:
        now, meta = self._clock(), pod.metadata
        if meta.deleted is not None:
            # The store rounds times down to whole seconds: a pod must not lose part of a short grace period to that.
            grace = min(meta.grace_seconds or 0, meta.deleted + 1 - now)
            self._feed(state_machine.StopRequested(meta.uid, max(0.0, grace), now))
        elif pod.status.phase not in _FINAL and meta.uid not in self._state.tasks:
            self._feed(self._pod_assigned(pod, now))

    def _pod_assigned(self, pod: Pod, now: float) -> state_machine.PodAssigned:
        attempt = max((status.restart_count for status in pod.status.container_statuses), default=0)
        try:
            assignment = assignment_of(pod)
        except Invalid as exc:
            meta = replace(pod.metadata, annotations={})
            assignment = assignment_of(replace(pod, metadata=meta))
            return state_machine.PodAssigned(assignment, now, attempt, rejection=str(exc))
        return state_machine.PodAssigned(assignment, now, attempt, rejection=rejection_of(pod, assignment))

    def _on_end(self, uid: str, ended: Ended) -> None:
        self._feed(_exited(uid, ended))

    def _on_saved(self, uid: str, at: float) -> None:
        self._feed(state_machine.CheckpointSaved(uid, at))

    def _has_ended(self, uid: str) -> bool:
        task = self._state.tasks.get(uid)
        return task is None or task.stage is Stage.ENDED

    def _feed(self, event: Event) -> None:
        if isinstance(event, state_machine.PodAssigned):
            self._checkpoint_gc.pod_added(event.assignment)
        self._state, commands = state_machine.step(self._state, event)
        for command in commands:
            self._execute(command)

    # --- commands

    def _execute(self, command: state_machine.Command) -> None:
        match command:
            case state_machine.Start(uid, attempt):
                self._spawn(self._start(uid, attempt))
            case state_machine.Signal(uid, name):
                if name == "TERM":
                    self._write_preemption_notice(uid)
                self._runtime.signal(uid, name)
            case state_machine.SetTimer(uid, timer, at):
                self._set_timer(uid, timer, at)
            case state_machine.Report(uid, task):
                self._reports[uid] = task
                self._writes.enqueue((uid, ""))
                if task.stage is Stage.ENDED:  # for good: its devices are free
                    self._spawn(self._release(uid))
            case state_machine.ConfirmDeletion(uid):
                self._confirmed.add(uid)
                self._writes.enqueue((uid, ""))
            case state_machine.Remove(uid):
                self._forget(uid)
                self._spawn(self._remove(uid))

    def _write_preemption_notice(self, uid: str) -> None:
        """A job that is preempted can read why, for which job and until when it may run, before it gets its TERM."""
        pod = self._pod(uid)
        record = None if pod is None else eviction_record_of(pod)
        if pod is not None and record is not None:
            self._runtime.write_preemption_notice(uid, preemption_message(record, pod.metadata.deleted))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None, "events arrive only while the agent runs"
        try:
            self._tasks.create_task(work)
        except RuntimeError:  # the agent is ending; the next one finds what is left to do
            work.close()

    async def _start(self, uid: str, attempt: int) -> None:
        try:
            result = await self._runtime.resume(uid, attempt) or await self._launch(uid, attempt)
        except CannotStart as exc:
            self._feed(state_machine.StartFailed(uid, attempt, exc.reason, exc.message, exc.code, self._clock()))
        except Exception:  # a fault with one pod must not stop the others
            log.exception("start failed", pod=uid)
            message = "the agent failed to start it; its log says why"
            self._feed(state_machine.StartFailed(uid, attempt, "CreateContainerError", message, 128, self._clock()))
        else:
            self._feed(_exited(uid, result) if isinstance(result, Ended) else _started(uid, result))

    async def _remove(self, uid: str) -> None:
        try:
            await self._runtime.remove(uid)
            await self._release(uid)
            self._checkpoint_gc.pod_removed(uid)
        except Exception:  # its files stay; the next start finds and removes them
            log.exception("remove failed", pod=uid)

    async def _release(self, uid: str) -> None:
        try:
            await asyncio.to_thread(self._devices.release, uid)
        except OSError:  # the sweep at the next start removes what is left
            log.exception("devices not released", pod=uid)

    async def _launch(self, uid: str, attempt: int) -> Started | Ended:
        pod = self._pod(uid)
        task = self._state.tasks.get(uid)
        if pod is None or task is None:
            raise CannotStart("CreateContainerError", "the pod is gone")
        # Not on the event loop: it may have to start an MPS daemon.
        launch = await asyncio.to_thread(launch_of, pod, task.assignment, attempt, self._devices, self._images)
        return await self._runtime.start(launch)

    def _set_timer(self, uid: str, timer: state_machine.Timer, at: float) -> None:
        if old := self._timers.pop((uid, timer), None):
            old.cancel()
        pause = max(0.0, at - self._clock())
        self._timers[uid, timer] = asyncio.get_running_loop().call_later(pause, self._fire, uid, timer)

    def _fire(self, uid: str, timer: state_machine.Timer) -> None:
        self._timers.pop((uid, timer), None)
        self._feed(state_machine.TimerFired(uid, timer, self._clock()))

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
        """Write the newest status of one pod, then complete its deletion if that is confirmed."""
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
            return  # deleted meanwhile; the informer will show it

    async def _report(self, pod: Pod, task: state_machine.Task) -> None:
        for _ in range(_MAX_CONFLICTS):
            status = status_of(task, pod, self._state.backoff)
            try:
                await self._store.update_status(replace(pod, status=status), seen=pod)
                return
            except Conflict:
                pod = await self._store.get(Pod, pod.metadata.name, pod.metadata.namespace)
                if pod.metadata.uid != task.assignment.uid:
                    return
        raise Conflict(f"pod {pod.metadata.name} changes faster than its status can be written")


def _started(uid: str, started: Started) -> state_machine.Started:
    return state_machine.Started(uid, started.attempt, started.at)


def _exited(uid: str, ended: Ended) -> state_machine.Exited:
    return state_machine.Exited(
        uid,
        ended.attempt,
        ended.code,
        ended.started,
        ended.finished,
        reason=ended.reason,
        message=ended.message,
        saved_at=ended.saved_at,
    )
