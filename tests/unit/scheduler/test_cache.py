"""The cache that follows events equals a cache that is built from the store afresh."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aliquot import labels
from aliquot.api import (
    KINDS,
    Compute,
    Department,
    Device,
    DeviceShare,
    Metadata,
    Namespace,
    Node,
    Pod,
    Project,
    Quota,
    SchedulingPolicy,
    Workload,
    shares_text,
)
from aliquot.api.department import DepartmentSpec
from aliquot.api.pod import PodCondition, PodStatus
from aliquot.api.project import ProjectSpec
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.api.workload import Interruption, WorkloadSpec, WorkloadStatus
from aliquot.backends.local.devices.node_devices import NodeFacts, node_object
from aliquot.errors import PlatformError
from aliquot.planner import DeviceShare as PlannedShare
from aliquot.planner import Job, Snapshot, plan
from aliquot.podspec.builder import build_pod
from aliquot.scheduler.cache import SchedulerCache
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_text
from aliquot.scheduler.nominations import nomination_text
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.namespace import POD, document
from support.stores.running import running
from support.waiting import eventually

NOW = 2e9  # after everything was created
CLUSTER = (Node, Namespace, Project, Department, SchedulingPolicy, Workload, Pod)
Step = tuple[str, int, int]  # what, to which of its objects, how
WORDS = (
    "node", "namespace", "project", "department", "policy", "workload", "pod",  # made, or changed where it is there
    "no node", "no namespace", "no project", "no department", "no policy", "no workload", "no pod",
    "bind", "assume", "confirm", "refuse", "starts", "ends", "deleted", "eviction", "nomination", "no nomination",
    "status", "snapshot", "snapshot", "snapshot", "snapshot", "apart", "together",
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 2), st.integers(0, 3)), max_size=40)


class Cluster:
    """A store that a test changes at will, and a cache that follows."""

    def __init__(self) -> None:
        ticks = itertools.count(1_000_000_000)
        self.driver = MemoryDriver(clock=lambda: float(next(ticks)))  # no two times are equal
        self.store = Store(self.driver)
        self.informers = Informers(self.driver)
        self.cache = SchedulerCache(self.informers, lambda: None)
        self._following: AsyncExitStack | None = None

    async def together(self) -> None:
        if self._following is None:
            self._following = AsyncExitStack()
            await self._following.enter_async_context(running(*(informer.run() for informer in self.informers)))

    async def apart(self) -> None:
        """Stops the informers. When `together` starts them they list again and compare."""
        if self._following is not None:
            await self._following.aclose()
            self._following = None

    async def caught_up(self) -> None:
        async def informers_match() -> bool:
            for cls in CLUSTER:
                objects = (await self.store.list(cls)).items
                stored = {(each.metadata.namespace, each.metadata.name): each for each in objects}
                if stored != dict(self.informers.of(cls).items()):
                    return False
            return True

        await eventually(informers_match)

    async def step(self, word: str, which: int, how: int) -> None:
        match word:
            case "snapshot":
                await self._snapshot()
            case "apart":
                await self.apart()
            case "together":
                await self.together()
            case "assume":
                self._assume(which, how)
            case "confirm" | "refuse":
                await self._finish_binding(word, which)
            case _:
                with suppress(PlatformError):
                    await self._write(word, which, how)

    async def _snapshot(self) -> None:
        """Parts of this snapshot are kept until an event changes them."""
        for _ in range(10):  # until the informers have seen the last writes
            await asyncio.sleep(0)
        self.cache.snapshot(0)
        self.cache.policies()

    def _assume(self, which: int, how: int) -> None:
        pod = self.informers.of(Pod).get(f"w{which}-0-0", f"runai-p{which % 2}")
        if pod is not None and not pod.spec.node_name:
            self.cache.assume(pod, f"n{how % 2}", (PlannedShare(how % 2, 1000, 1000),))

    async def _finish_binding(self, word: str, which: int) -> None:
        """Writes an assumed binding, or fails to."""
        pod = self.informers.of(Pod).get(f"w{which}-0-0", f"runai-p{which % 2}")
        placement = None if pod is None else self.cache.assumed_placement(pod)
        if pod is None or placement is None:
            return
        node, shares = placement
        try:
            if word == "refuse":
                raise PlatformError("refused")
            await self._bind(pod, node, shares[0].index)
        except PlatformError:
            self.cache.forget(pod)

    async def _bind(self, pod: Pod, node: str, index: int) -> None:
        devices = shares_text([DeviceShare(index=index, milli=1000, memory_mib=1000)])
        change = {"metadata": {"annotations": {labels.DEVICES: devices}}, "spec": {"nodeName": node}}
        meta = pod.metadata
        await self.driver.patch(POD, meta.name, meta.namespace, change, version=meta.version)

    async def _write(self, word: str, which: int, how: int) -> None:
        namespace = f"runai-p{which % 2}"
        kind = word.removeprefix("no ")
        if kind in _MAKE:
            target = _MAKE[kind](which, how)
            if word.startswith("no "):
                await self.driver.delete(
                    KINDS.of(type(target)), target.metadata.name, target.metadata.namespace, grace_seconds=0
                )
            else:
                await self._apply(target)
            return
        if word == "pod" or word == "no pod":
            await self._pod(word, which, how)
            return
        seen = await self.store.get(Pod, f"w{which}-0-0", namespace)
        match word:
            case "bind":
                await self._bind(seen, f"n{how % 2}", how % 2)
            case "starts" | "ends":
                phase = "Running" if word == "starts" else "Succeeded"
                saved = PodCondition(type=labels.CHECKPOINT_SAVED, status="True", last_transition_time=1e9 + how)
                status = PodStatus(phase=phase, start_time=1e9 + how % 2, conditions=(saved,) if how > 1 else ())
                await self.store.update_status(replace(seen, status=status), seen=seen)
            case "deleted":
                await self.store.delete(seen)
            case "status":
                workload = await self.store.get(Workload, f"w{which}", namespace)
                stops = (Interruption(at=1e9, reason="reclaimed", pod=str(how)),) * (how % 3)
                workload_status = WorkloadStatus(message=str(how), interruptions=stops)
                await self.store.update_status(replace(workload, status=workload_status), seen=workload)
            case _:
                await self._annotate(seen, word, how)

    async def _annotate(self, seen: Pod, word: str, how: int) -> None:
        values: dict[str, str | None] = {
            "eviction": eviction_record_text(EvictionRecord("reclaim", "p/x", "", float(how))),
            "nomination": nomination_text(f"n{how % 2}", [PlannedShare(how % 2, 1000, 1000)]),
            "no nomination": None,
        }
        annotation = labels.EVICTION_RECORD if word == "eviction" else labels.NOMINATION
        await self.driver.patch(
            POD, seen.metadata.name, seen.metadata.namespace, {"metadata": {"annotations": {annotation: values[word]}}}
        )

    async def _pod(self, word: str, which: int, how: int) -> None:
        namespace = f"runai-p{which % 2}"
        if word == "no pod":
            await self.driver.delete(POD, f"w{which}-0-0", namespace, grace_seconds=0)
        elif how == 3:  # a pod of another scheduler
            spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": "n1", "schedulerName": "other"}
            await self.driver.create(POD, document(POD, f"other{which}", namespace, spec))
        else:
            await self.store.create(build_pod(await self.store.get(Workload, f"w{which}", namespace), f"p{which % 2}"))

    async def _apply(self, created: Any) -> None:
        cls, meta = type(created), created.metadata
        try:
            await self.store.create(created)
        except PlatformError:
            seen = await self.store.get(cls, meta.name, meta.namespace)
            merged = {**seen.metadata.labels, **meta.labels}
            changed: Any = replace(created, metadata=replace(seen.metadata, labels=merged))
            await self.store.update(changed, seen=seen)


def _node(which: int, how: int) -> Node:
    devices = tuple(Device(index=index, memory_mib=1000) for index in range(1 + how))
    return node_object(NodeFacts(name=f"n{which % 2}", devices=devices, cpu=64000, memory=1 << 36), now=float(how))


def _namespace(which: int, how: int) -> Namespace:
    owner = f"p{(which + (how == 3)) % 2}"  # it may change its project
    return Namespace(metadata=Metadata(name=f"runai-p{which % 2}", labels={labels.PROJECT: owner}))


def _project(which: int, how: int) -> Project:
    spec = ProjectSpec(quota=Quota(gpu=how * 1000), department=f"d{how % 2}", default_pools=("x",) if how == 3 else ())
    return Project(metadata=Metadata(name=f"p{which % 2}"), spec=spec)


def _department(which: int, how: int) -> Department:
    return Department(metadata=Metadata(name=f"d{which % 2}"), spec=DepartmentSpec(quota=Quota(gpu=how * 1000)))


def _policy(which: int, how: int) -> SchedulingPolicy:
    spec = SchedulingPolicySpec(victims="newest" if how % 2 else None, spare="weight" if how > 1 else None)
    return SchedulingPolicy(metadata=Metadata(name=f"s{which}"), spec=spec)


def _workload(which: int, how: int) -> Workload:
    kind: Any = "interactive" if how == 2 else "training"
    spec = WorkloadSpec(
        image="x",
        type=kind,
        compute=Compute(gpu=500 * how),
        preemption_delay=how,
        node_pools=("x",) if how == 3 else (),
    )
    return Workload(metadata=Metadata(name=f"w{which}", namespace=f"runai-p{which % 2}"), spec=spec)


_MAKE: dict[str, Callable[[int, int], Any]] = {
    "node": _node, "namespace": _namespace, "project": _project, "department": _department, "policy": _policy,
    "workload": _workload,
}  # fmt: skip


def ordered(snapshot: Snapshot) -> tuple[Any, ...]:
    def tasks(job: Job) -> Job:
        return replace(job, tasks=tuple(sorted(job.tasks, key=lambda task: task.name)))

    by_name: Callable[[Any], str] = lambda part: part.name  # noqa: E731
    jobs = sorted(map(tasks, snapshot.jobs), key=by_name)
    return sorted(snapshot.nodes, key=by_name), sorted(snapshot.queues, key=by_name), jobs


async def _compare_after(steps: list[Step]) -> None:
    warm = Cluster()
    await warm.together()
    for step in [*_BEGINNING, *steps]:
        await warm.step(*step)
        await asyncio.sleep(0)
    await warm.together()
    await warm.caught_up()
    fresh_informers = Informers(warm.driver)
    cold = SchedulerCache(fresh_informers, lambda: None)
    async with running(*(informer.run() for informer in fresh_informers)):
        await cold.wait_synced()
    # The store does not show what the scheduler has only assumed.
    for pod in fresh_informers.of(Pod):
        placement = warm.cache.assumed_placement(pod)
        if not pod.spec.node_name and placement is not None:
            cold.assume(pod, *placement)
    await warm.apart()
    for name in ("_assumed", "_evicting"):
        assert vars(warm.cache)[name] == vars(cold)[name]
    assert warm.cache.policies() == cold.policies()
    seen, fresh = warm.cache.snapshot(0), cold.snapshot(0)
    assert ordered(seen) == ordered(fresh)
    assert sorted(warm.cache.nominated_tasks()) == sorted(cold.nominated_tasks())
    policy, policies = cold.policies()
    assert plan(seen, policy, NOW, policies) == plan(fresh, policy, NOW, policies)


# Enough objects that most steps have something to change.
_BEGINNING: list[Step] = [
    ("namespace", 0, 0), ("namespace", 1, 0), ("project", 0, 1), ("project", 1, 2), ("node", 0, 1), ("node", 1, 1),
    ("workload", 0, 1), ("workload", 1, 2), ("pod", 0, 0), ("pod", 1, 0), ("snapshot", 0, 0),
]  # fmt: skip


@given(STEPS)
@example([("project", 0, 3)])
@example([("apart", 0, 0), ("no project", 0, 0), ("project", 0, 1)])  # a new object of the same name
@example([("namespace", 0, 3)])
@example([("assume", 0, 1), ("snapshot", 0, 0), ("confirm", 0, 0)])
@example([("assume", 0, 1), ("snapshot", 0, 0), ("refuse", 0, 0)])
@settings(deadline=None, max_examples=150)
def test_equals_a_fresh_cache(steps: list[Step]) -> None:
    """After any events the cache equals a fresh one, and so does the plan."""
    asyncio.run(_compare_after(steps))


def test_name_reused_while_disconnected() -> None:
    """A workload that was deleted and created again while the informers were stopped is another one, of another age."""
    asyncio.run(_compare_after([("snapshot", 0, 0), ("apart", 0, 0), ("no workload", 0, 0), ("workload", 0, 1)]))


def test_nothing_is_kept_of_deleted_pods() -> None:
    """Deleted pods leave nothing behind in the cache."""

    async def create_and_delete() -> SchedulerCache:
        cluster = Cluster()
        await cluster.together()
        for step in (*_BEGINNING, ("no pod", 0, 0), ("no pod", 1, 0), ("snapshot", 0, 0)):
            await cluster.step(*step)
        await cluster.caught_up()
        cluster.cache.snapshot(0)
        await cluster.apart()
        return cluster.cache

    cache = vars(asyncio.run(create_and_delete()))
    kept = {**cache, **vars(cache["_jobs"])}
    assert [kept[name] for name in ("_groups", "_jobs", "_stale", "_evicting", "_assumed")] == [{}] * 5
