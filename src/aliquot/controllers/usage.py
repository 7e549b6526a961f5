"""What projects, departments and node pools hold and ask for, in their status; and what was held over time.

    pod -> who pays in its namespace -> project -> department
    pod -> node -> node pool

A change of a pod is added to the sums above it, and only those are looked at: what nothing happens to costs nothing,
however many there are. The sums live in memory and are made anew at every start, so a crash cannot make them wrong.
A status is written where it differs from the sums, whoever made it differ.

A pod holds its place until it is gone, also while it stops; it asks for it until it has ended or is to stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from operator import add
from typing import NamedTuple

from aliquot.api import Amounts, Department, Namespace, Node, NodePool, Pod, Project, devices_of, shares_of
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Invalid
from aliquot.labels import DEFAULT_DEPARTMENT, project_of
from aliquot.planner import Request
from aliquot.podspec.requests import is_foreign, request_of
from aliquot.scheduler.pod_groups import charged_project
from aliquot.scheduler.scheduling_context import EMPTY_CONTEXT, SchedulingContext
from aliquot.scheduler.snapshot import node_of
from aliquot.scheduler.usage_history import extend_history
from aliquot.store.informer import Informer, Informers, Key
from aliquot.store.typed_store import Store
from aliquot.units import GPU

_FINISHED = ("Succeeded", "Failed")
# Changes come in bursts; a moment's patience makes one write of them.
_PATIENCE_SECONDS = 0.05

SumKey = tuple[str, str, str]  # kind, namespace, name
PayerKey = tuple[bool, str]  # whether another scheduler placed the pods, and the project that they name


class ResourceUsage(NamedTuple):
    """What is held and what is asked for: GPUs and cores in thousandths, memory in bytes. Of a node and a node pool it
    is what is held there and what there is."""

    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    asked_gpu: int = 0
    asked_cpu: int = 0
    asked_memory: int = 0
    projects: int = 0

    def plus(self, other: ResourceUsage, sign: int = 1) -> ResourceUsage:
        return ResourceUsage(*map(add, self, (sign * each for each in other)))

    @property
    def allocated(self) -> Amounts:
        return Amounts(gpu=self.gpu, cpu=self.cpu, memory=self.memory)

    @property
    def requested(self) -> Amounts:
        return Amounts(gpu=self.asked_gpu, cpu=self.asked_cpu, memory=self.asked_memory)


_NOTHING = ResourceUsage()


class SumTree:
    """A tree of sums. A change costs as many additions as there are places above it."""

    def __init__(self, changed: Callable[[SumKey], None]) -> None:
        self._changed = changed
        self._own: dict[SumKey, ResourceUsage] = {}
        self._totals: dict[SumKey, ResourceUsage] = {}
        self._above: dict[SumKey, SumKey] = {}

    def total(self, place: SumKey) -> ResourceUsage:
        return self._totals.get(place, _NOTHING)

    def put(self, place: SumKey, own: ResourceUsage, above: SumKey | None) -> None:
        """What a place has itself, and where it belongs."""
        if self._above.get(place) != above:
            self._add(self._above.pop(place, None), self.total(place), -1)
            if above is not None:
                self._above[place] = above
            self._add(above, self.total(place))
        before = self._own.pop(place, _NOTHING)
        if own != _NOTHING:
            self._own[place] = own
        self._add(place, own.plus(before, -1))

    def drop(self, place: SumKey) -> None:
        self.put(place, _NOTHING, None)

    def _add(self, place: SumKey | None, more: ResourceUsage, sign: int = 1) -> None:
        if more == _NOTHING:
            return
        while place is not None:
            total = self.total(place).plus(more, sign)
            if total == _NOTHING:
                self._totals.pop(place, None)
            else:
                self._totals[place] = total
            self._changed(place)
            place = self._above.get(place)


class UsageTotals:
    """The sums, kept up to date by what happens to pods, namespaces, projects and nodes."""

    def __init__(self, changed: Callable[[SumKey], None], context: SchedulingContext = EMPTY_CONTEXT) -> None:
        self._context = context
        self._sums = SumTree(changed)
        self._machines = SumTree(changed)
        self._sizes: dict[str, dict[int, int]] = {}  # node -> GPU -> MiB
        self._by_memory: dict[Key, Pod] = {}  # those whose part of a GPU depends on the size of the GPU
        self._owners: dict[str, str] = {}  # namespace -> project
        self._bills: dict[str, dict[PayerKey, SumKey]] = {}  # by namespace

    def of_project(self, name: str) -> ResourceUsage:
        return self._sums.total(("project", "", name))

    def of_department(self, name: str) -> ResourceUsage:
        return self._sums.total(("department", "", name))

    def of_pool(self, name: str) -> ResourceUsage:
        return self._machines.total(("pool", "", name))

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        self._by_memory.pop(key, None)
        if new is None or self._context.is_placeholder(new):  # the pods that share its device are counted
            self._sums.drop(("pod", *key))
            self._machines.drop(("pod", *key))
            return
        request = _request(new)
        if request.memory_mib:
            self._by_memory[key] = new
        use = self._use(new, request)
        self._sums.put(("pod", *key), use, self._bill(new))
        node = new.spec.node_name
        self._machines.put(("pod", *key), ResourceUsage(*use[:3]), ("node", "", node) if node else None)

    def _bill(self, pod: Pod) -> SumKey:
        """Where a pod is added up: with those of its namespace for which the same one pays."""
        namespace, bill = pod.metadata.namespace, (is_foreign(pod), project_of(pod.metadata.labels))
        bills = self._bills.setdefault(namespace, {})
        if bill not in bills:
            bills[bill] = ("bill", f"{namespace}/{bill[0]}", bill[1])
            self._send(namespace, bill)
        return bills[bill]

    def _send(self, namespace: str, bill: PayerKey) -> None:
        project = charged_project(*bill, self._owners.get(namespace, ""))
        self._sums.put(self._bills[namespace][bill], _NOTHING, ("project", "", project) if project else None)

    def namespace_changed(self, key: Key, old: Namespace | None, new: Namespace | None) -> None:
        self._owners[key[1]] = project_of(new.metadata.labels) if new else ""
        for bill in self._bills.get(key[1], {}):
            self._send(key[1], bill)

    def project_changed(self, key: Key, old: Project | None, new: Project | None) -> None:
        place = ("project", "", key[1])
        if new is None:
            self._sums.drop(place)
        else:
            department = new.spec.department or DEFAULT_DEPARTMENT
            self._sums.put(place, ResourceUsage(projects=1), ("department", "", department))

    def node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        place = ("node", "", key[1])
        if new is None:
            self._machines.put(place, _NOTHING, None)
        else:
            node = node_of(new)
            gpu = GPU * sum(device.healthy for device in node.devices)
            self._machines.put(place, ResourceUsage(0, 0, 0, gpu, node.cpu, node.memory), ("pool", "", node.pool))
        before = self._sizes.pop(key[1], {})
        sizes = _sizes(new) if new else {}
        if sizes:
            self._sizes[key[1]] = sizes
        if sizes != before:
            for pod_key, pod in list(self._by_memory.items()):
                self.pod_changed(pod_key, pod, pod)

    def _use(self, pod: Pod, request: Request) -> ResourceUsage:
        if pod.status.phase in _FINISHED:
            return _NOTHING
        amounts = (request.quota(self._size(pod)), request.cpu, request.memory)
        held = amounts if pod.spec.node_name else (0, 0, 0)
        asked = amounts if pod.metadata.deleted is None else (0, 0, 0)
        return ResourceUsage(*held, *asked)

    def _size(self, pod: Pod) -> int:
        """MiB of the GPU it got; of the smallest there is while it waits."""
        try:
            sizes, shares = self._sizes.get(pod.spec.node_name, {}), shares_of(pod)
        except Invalid:
            shares = ()
        if shares and shares[0].index in sizes:
            return sizes[shares[0].index]
        return min((size for each in self._sizes.values() for size in each.values()), default=0)


def _request(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        return Request()  # written past our checks by somebody else; the scheduler tells what is wrong


def _sizes(node: Node) -> dict[int, int]:
    try:
        return {device.index: device.memory_mib for device in devices_of(node) if device.memory_mib}
    except Invalid:
        return {}


class UsageReconciler:
    """The loop that writes what the books say."""

    def __init__(
        self,
        store: Store,
        informers: Informers,
        clock: Callable[[], float] = time.time,
        context: SchedulingContext | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        nodes, namespaces, pods = informers.of(Node), informers.of(Namespace), informers.of(Pod)
        self._projects: Informer[Project] = informers.of(Project)
        self._departments: Informer[Department] = informers.of(Department)
        self._pools: Informer[NodePool] = informers.of(NodePool)
        self._informers = (pods, namespaces, nodes, self._projects, self._departments, self._pools)
        self._due: set[Key] = set()
        self._controller = Controller("usage", self._reconcile)
        self.books = UsageTotals(self._moved, context or EMPTY_CONTEXT)
        nodes.listen(self.books.node_changed)
        namespaces.listen(self.books.namespace_changed)
        self._projects.listen(self.books.project_changed)
        pods.listen(self.books.pod_changed)
        # Also when somebody else, or a write of ours that was overtaken, left another status.
        self._projects.listen(lambda key, old, new: self._look_at(("project", key[1])))
        self._departments.listen(lambda key, old, new: self._look_at(("department", key[1])))
        self._pools.listen(lambda key, old, new: self._look_at(("pool", key[1])))

    def _moved(self, place: SumKey) -> None:
        if place[0] in ("project", "department", "pool"):
            self._look_at((place[0], place[2]))

    def _look_at(self, key: Key) -> None:
        if key not in self._due:
            self._due.add(key)
            self._controller.enqueue_after(key, _PATIENCE_SECONDS)

    async def run(self) -> None:
        """Until cancelled. Nothing is written before everything was seen."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._controller.run()

    async def _reconcile(self, key: Key) -> None:
        self._due.discard(key)
        kind, name = key
        if kind == "project" and (project := self._projects.get(name)):
            await self._project(project, self.books.of_project(name))
        elif kind == "department" and (department := self._departments.get(name)):
            await self._department(department, self.books.of_department(name))
        elif kind == "pool" and (pool := self._pools.get(name)):
            await self._pool(pool, self.books.of_pool(name))

    async def _project(self, project: Project, use: ResourceUsage) -> None:
        status = project.status
        history = status.history
        if use.allocated != status.allocated or not history:
            history = extend_history(history, status.allocated, self._clock())
        told = replace(status, allocated=use.allocated, requested=use.requested, history=history)
        if told != status:
            await self._store.update_status(replace(project, status=told), seen=project)

    async def _department(self, department: Department, use: ResourceUsage) -> None:
        told = replace(
            department.status,
            phase="Ready",
            projects=use.projects,
            allocated=use.allocated,
            requested=use.requested,
            observed_generation=department.metadata.generation,
        )
        if told != department.status:
            await self._store.update_status(replace(department, status=told), seen=department)

    async def _pool(self, pool: NodePool, use: ResourceUsage) -> None:
        status = pool.status
        history = status.history
        if use.requested != status.total or not history:
            history = extend_history(history, status.total, self._clock())
        told = replace(
            status,
            phase="Ready",
            total=use.requested,
            allocated=use.allocated,
            history=history,
            observed_generation=pool.metadata.generation,
        )
        if told != status:
            await self._store.update_status(replace(pool, status=told), seen=pool)
