"""The usage controller: writes to the status of projects, departments and node pools what their pods hold and request.

    pod -> payer in its namespace -> project -> department
    pod -> node -> node pool

A change of a pod is added to the sums above it, and only those are reconciled: objects without changes cost nothing,
however many there are. The sums live in memory and are rebuilt at every start, so a crash cannot make them wrong. A
status is written whenever it differs from the sums, whatever made it differ.

A pod holds its resources until it is gone, also while it terminates. It requests them until it has ended or is deleted.
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
# Changes come in bursts: those within 50 ms are written at once.
_DEBOUNCE_SECONDS = 0.05

SumKey = tuple[str, str, str]  # kind, namespace, name
PayerKey = tuple[bool, str]  # whether another scheduler places the pods, and the project that they name


class ResourceUsage(NamedTuple):
    """What pods hold and request: GPUs and cores in thousandths, memory in bytes.

    For nodes and node pools the `requested` fields are their capacity.
    """

    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    requested_gpu: int = 0
    requested_cpu: int = 0
    requested_memory: int = 0
    projects: int = 0

    def plus(self, other: ResourceUsage, sign: int = 1) -> ResourceUsage:
        return ResourceUsage(*map(add, self, (sign * amount for amount in other)))

    @property
    def allocated(self) -> Amounts:
        return Amounts(gpu=self.gpu, cpu=self.cpu, memory=self.memory)

    @property
    def requested(self) -> Amounts:
        return Amounts(gpu=self.requested_gpu, cpu=self.requested_cpu, memory=self.requested_memory)


_ZERO = ResourceUsage()


class SumTree:
    """A tree of sums. A change costs one addition for each of its ancestors."""

    def __init__(self, changed: Callable[[SumKey], None]) -> None:
        self._changed = changed
        self._own: dict[SumKey, ResourceUsage] = {}
        self._totals: dict[SumKey, ResourceUsage] = {}
        self._parents: dict[SumKey, SumKey] = {}

    def total(self, key: SumKey) -> ResourceUsage:
        return self._totals.get(key, _ZERO)

    def put(self, key: SumKey, own: ResourceUsage, parent: SumKey | None) -> None:
        """Sets a key's own usage, without that of its children, and its parent."""
        if self._parents.get(key) != parent:
            self._add(self._parents.pop(key, None), self.total(key), -1)
            if parent is not None:
                self._parents[key] = parent
            self._add(parent, self.total(key))
        before = self._own.pop(key, _ZERO)
        if own != _ZERO:
            self._own[key] = own
        self._add(key, own.plus(before, -1))

    def drop(self, key: SumKey) -> None:
        self.put(key, _ZERO, None)

    def _add(self, key: SumKey | None, change: ResourceUsage, sign: int = 1) -> None:
        if change == _ZERO:
            return
        while key is not None:
            total = self.total(key).plus(change, sign)
            if total == _ZERO:
                self._totals.pop(key, None)
            else:
                self._totals[key] = total
            self._changed(key)
            key = self._parents.get(key)


class UsageTotals:
    """The usage of every project, department and node pool, kept up to date by changes of the objects below them."""

    def __init__(self, changed: Callable[[SumKey], None], context: SchedulingContext = EMPTY_CONTEXT) -> None:
        self._context = context
        self._by_project = SumTree(changed)
        self._by_pool = SumTree(changed)
        self._device_sizes: dict[str, dict[int, int]] = {}  # node -> GPU -> MiB
        self._memory_requests: dict[Key, Pod] = {}  # pods that request GPU memory: their fraction depends on the GPU
        self._namespace_projects: dict[str, str] = {}
        self._payers: dict[str, dict[PayerKey, SumKey]] = {}  # by namespace

    def of_project(self, name: str) -> ResourceUsage:
        return self._by_project.total(("project", "", name))

    def of_department(self, name: str) -> ResourceUsage:
        return self._by_project.total(("department", "", name))

    def of_pool(self, name: str) -> ResourceUsage:
        return self._by_pool.total(("pool", "", name))

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        self._memory_requests.pop(key, None)
        if new is None or self._context.is_placeholder(new):  # the pods that share its device are counted
            self._by_project.drop(("pod", *key))
            self._by_pool.drop(("pod", *key))
            return
        request = _request(new)
        if request.memory_mib:
            self._memory_requests[key] = new
        usage = self._usage(new, request)
        self._by_project.put(("pod", *key), usage, self._payer_of(new))
        node = new.spec.node_name
        self._by_pool.put(("pod", *key), ResourceUsage(*usage[:3]), ("node", "", node) if node else None)

    def _payer_of(self, pod: Pod) -> SumKey:
        """The sum of all pods in the namespace that are charged to the same project."""
        namespace, payer = pod.metadata.namespace, (is_foreign(pod), project_of(pod.metadata.labels))
        payers = self._payers.setdefault(namespace, {})
        if payer not in payers:
            payers[payer] = ("payer", f"{namespace}/{payer[0]}", payer[1])
            self._charge(namespace, payer)
        return payers[payer]

    def _charge(self, namespace: str, payer: PayerKey) -> None:
        project = charged_project(*payer, self._namespace_projects.get(namespace, ""))
        self._by_project.put(self._payers[namespace][payer], _ZERO, ("project", "", project) if project else None)

    def namespace_changed(self, key: Key, old: Namespace | None, new: Namespace | None) -> None:
        self._namespace_projects[key[1]] = project_of(new.metadata.labels) if new else ""
        for payer in self._payers.get(key[1], {}):
            self._charge(key[1], payer)

    def project_changed(self, key: Key, old: Project | None, new: Project | None) -> None:
        sum_key = ("project", "", key[1])
        if new is None:
            self._by_project.drop(sum_key)
        else:
            department = new.spec.department or DEFAULT_DEPARTMENT
            self._by_project.put(sum_key, ResourceUsage(projects=1), ("department", "", department))

    def node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        sum_key = ("node", "", key[1])
        if new is None:
            self._by_pool.drop(sum_key)
        else:
            node = node_of(new)
            capacity = ResourceUsage(
                requested_gpu=GPU * sum(device.healthy for device in node.devices),
                requested_cpu=node.cpu,
                requested_memory=node.memory,
            )
            self._by_pool.put(sum_key, capacity, ("pool", "", node.pool))
        before = self._device_sizes.pop(key[1], {})
        sizes = _device_sizes(new) if new else {}
        if sizes:
            self._device_sizes[key[1]] = sizes
        if sizes != before:
            for pod_key, pod in list(self._memory_requests.items()):
                self.pod_changed(pod_key, pod, pod)

    def _usage(self, pod: Pod, request: Request) -> ResourceUsage:
        if pod.status.phase in _FINISHED:
            return _ZERO
        amounts = (request.quota(self._device_size(pod)), request.cpu, request.memory)
        held = amounts if pod.spec.node_name else (0, 0, 0)
        requested = amounts if pod.metadata.deleted is None else (0, 0, 0)
        return ResourceUsage(*held, *requested)

    def _device_size(self, pod: Pod) -> int:
        """MiB of the pod's GPU; of the smallest GPU there is while the pod waits."""
        try:
            sizes, shares = self._device_sizes.get(pod.spec.node_name, {}), shares_of(pod)
        except Invalid:
            shares = ()
        if shares and shares[0].index in sizes:
            return sizes[shares[0].index]
        return min((size for devices in self._device_sizes.values() for size in devices.values()), default=0)


def _request(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        return Request()  # written past our validation; the scheduler reports what is wrong


def _device_sizes(node: Node) -> dict[int, int]:
    try:
        return {device.index: device.memory_mib for device in devices_of(node) if device.memory_mib}
    except Invalid:
        return {}


class UsageReconciler:
    """Writes the totals to the statuses."""

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
        self._queued: set[Key] = set()
        self._controller = Controller("usage", self._reconcile)
        self.totals = UsageTotals(self._total_changed, context or EMPTY_CONTEXT)
        nodes.listen(self.totals.node_changed)
        namespaces.listen(self.totals.namespace_changed)
        self._projects.listen(self.totals.project_changed)
        pods.listen(self.totals.pod_changed)
        # Also when another writer, or a write of ours that met a conflict, left a different status.
        self._projects.listen(lambda key, old, new: self._enqueue(("project", key[1])))
        self._departments.listen(lambda key, old, new: self._enqueue(("department", key[1])))
        self._pools.listen(lambda key, old, new: self._enqueue(("pool", key[1])))

    def _total_changed(self, key: SumKey) -> None:
        if key[0] in ("project", "department", "pool"):
            self._enqueue((key[0], key[2]))

    def _enqueue(self, key: Key) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._controller.enqueue_after(key, _DEBOUNCE_SECONDS)

    async def run(self) -> None:
        """Runs until cancelled. Writes nothing before all informers are synced."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._controller.run()

    async def _reconcile(self, key: Key) -> None:
        self._queued.discard(key)
        kind, name = key
        if kind == "project" and (project := self._projects.get(name)):
            await self._write_project(project, self.totals.of_project(name))
        elif kind == "department" and (department := self._departments.get(name)):
            await self._write_department(department, self.totals.of_department(name))
        elif kind == "pool" and (pool := self._pools.get(name)):
            await self._write_pool(pool, self.totals.of_pool(name))

    async def _write_project(self, project: Project, usage: ResourceUsage) -> None:
        status = project.status
        history = status.history
        if usage.allocated != status.allocated or not history:
            history = extend_history(history, status.allocated, self._clock())
        wanted = replace(status, allocated=usage.allocated, requested=usage.requested, history=history)
        if wanted != status:
            await self._store.update_status(replace(project, status=wanted), seen=project)

    async def _write_department(self, department: Department, usage: ResourceUsage) -> None:
        wanted = replace(
            department.status,
            phase="Ready",
            projects=usage.projects,
            allocated=usage.allocated,
            requested=usage.requested,
            observed_generation=department.metadata.generation,
        )
        if wanted != department.status:
            await self._store.update_status(replace(department, status=wanted), seen=department)

    async def _write_pool(self, pool: NodePool, usage: ResourceUsage) -> None:
        status = pool.status
        history = status.history
        if usage.requested != status.total or not history:
            history = extend_history(history, status.total, self._clock())
        wanted = replace(
            status,
            phase="Ready",
            total=usage.requested,
            allocated=usage.allocated,
            history=history,
            observed_generation=pool.metadata.generation,
        )
        if wanted != status:
            await self._store.update_status(replace(pool, status=wanted), seen=pool)
