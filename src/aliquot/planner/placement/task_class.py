"""Task classes: tasks with the same request that may use the same nodes are decided about once.

Which nodes a task may use at all (labels, taints, types, roles, pool, kind of device) does not change during a cycle.
So it is a mask over the nodes, which the rules in `fit/` give once per class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aliquot.planner.model import GPU, Amount, Job, PodAffinityTerm, Request, Task
from aliquot.planner.placement import fit
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState

NO_GPU, WHOLE, FRACTION, MIG = range(4)  # forms of a request for devices


class TaskClass:
    """What a task requests, and the nodes that it may use."""

    __slots__ = (
        "amount",
        "cpu",
        "devices",
        "devices_only",
        "form",
        "id",
        "job",
        "labels",
        "mask",
        "memory",
        "min_amount",
        "needs",
        "pod_affinity",
        "pod_anti_affinity",
        "request",
        "task",
        "varies",
    )

    def __init__(self, number: int, task: Task, job: Job, mask: bytes, sizes: tuple[int, ...]) -> None:
        request = task.request
        self.id = number
        self.job = job
        self.devices_only: TaskClass | None = None
        self.task = task  # an example, for the text of refusals
        self.request: Request = request
        self.mask = mask  # by node id: whether a task may use the node
        self.cpu = request.cpu
        self.memory = request.memory
        self.devices = request.devices
        self.form = _form(request)
        self.needs: dict[int, tuple[int, int]] = {}
        # A pending task counts by the smallest device that it may use. On the largest device it counts least.
        fitting = [size for size in sizes if size >= request.memory_mib] or [0]
        self.amount: Amount = (request.quota(fitting[0]), request.cpu, request.memory)
        self.min_amount: Amount = (request.quota(fitting[-1]), request.cpu, request.memory)
        self.varies = self.min_amount != self.amount  # whether the amount depends on the device
        self.pod_affinity: PodAffinityTerm | None = job.pod_affinity
        self.pod_anti_affinity: PodAffinityTerm | None = job.pod_anti_affinity
        self.labels: Mapping[str, str] = job.labels

    def need(self, size: int) -> tuple[int, int]:
        """Milli and MiB that it takes of a device of this size."""
        need = self.needs.get(size)
        if need is None:
            if self.request.memory_mib:
                need = (GPU * self.request.memory_mib // size if size else GPU, self.request.memory_mib)
            else:
                need = (self.request.milli, self.request.milli * size // GPU)
            self.needs[size] = need
        return need

    def fits(self, node: NodeState, view: FreeResources) -> bool:
        if self.cpu > view.cpu or self.memory > view.memory or view.pods < 1:
            return False
        if self.form == WHOLE:
            return view.whole >= self.devices
        if self.form == NO_GPU:
            return True
        return self.find_devices(node, view) is not None

    def find_devices(
        self, node: NodeState, view: FreeResources, spread: bool = False, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        """The devices that it would get here: the fullest that fit (or the emptiest), ties by index. With `other` they
        must fit in that view too. None when there are not enough."""
        if self.form == NO_GPU:
            return []
        if self.form == MIG:
            return self._find_slices(node, view, other)
        if self.form == WHOLE:
            return self._find_whole(node, view, other)
        allocs = self.fitting_devices(node, view, other)
        if len(allocs) < self.devices:
            return None
        milli = view.milli
        allocs.sort(key=lambda alloc: (-milli[alloc[0]] if spread else milli[alloc[0]], alloc[0]))
        return allocs[: self.devices]

    def fitting_devices(
        self, node: NodeState, view: FreeResources, other: FreeResources | None = None
    ) -> list[DeviceAlloc]:
        """All devices on which its fraction fits."""
        milli, mib, profiles = view.milli, view.mib, node.profiles
        allocs: list[DeviceAlloc] = []
        for device, size in enumerate(node.sizes):
            if profiles is not None and profiles[device]:
                continue
            need = self.need(size)
            if milli[device] < need[0] or mib[device] < need[1]:
                continue
            if other is not None and (other.milli[device] < need[0] or other.mib[device] < need[1]):
                continue
            allocs.append((device, *need))
        return allocs

    def _find_whole(
        self, node: NodeState, view: FreeResources, other: FreeResources | None
    ) -> list[DeviceAlloc] | None:
        if view.whole < self.devices:
            return None
        milli, mib, sizes, profiles = view.milli, view.mib, node.sizes, node.profiles
        allocs: list[DeviceAlloc] = []
        device = -1
        try:
            while len(allocs) < self.devices:
                device = milli.index(GPU, device + 1)
                size = sizes[device]
                if mib[device] < size or (profiles is not None and profiles[device]):
                    continue
                if other is not None and (other.milli[device] < GPU or other.mib[device] < size):
                    continue
                allocs.append((device, GPU, size))
        except ValueError:
            return None
        return allocs

    def _find_slices(
        self, node: NodeState, view: FreeResources, other: FreeResources | None
    ) -> list[DeviceAlloc] | None:
        if node.profiles is None:
            return None
        allocs: list[DeviceAlloc] = []
        for profile, count in self.request.mig:
            free = [
                (device, GPU, node.sizes[device])
                for device, name in enumerate(node.profiles)
                if name == profile and view.milli[device] == GPU and (other is None or other.milli[device] == GPU)
            ]
            if len(free) < count:
                return None
            allocs += free[:count]
        return allocs

    def fits_shared_device(self, node: NodeState, view: FreeResources) -> bool:
        """Whether its fraction fits on a device of which another part is allocated."""
        milli, mib = view.milli, view.mib
        for device, size in enumerate(node.sizes):
            if node.profiles is not None and node.profiles[device]:
                continue
            need = self.need(size)
            if (milli[device] < GPU or mib[device] < size) and milli[device] >= need[0] and mib[device] >= need[1]:
                return True
        return False


def _form(request: Request) -> int:
    if request.mig:
        return MIG
    if not request.devices:
        return NO_GPU
    return WHOLE if request.whole else FRACTION


class TaskClasses:
    """All task classes of a cycle."""

    def __init__(self, nodes: list[NodeState]) -> None:
        self._nodes = nodes
        self._classes: dict[object, TaskClass] = {}
        self._masks: dict[object, tuple[bytes, tuple[int, ...]]] = {}
        self._cluster = fit.Cluster.of(node.source for node in nodes)

    def of(self, task: Task, job: Job) -> TaskClass:
        request = task.request
        if (
            task.selector
            or task.tolerations
            or task.node_types
            or task.affinity
            or job.pod_affinity
            or job.pod_anti_affinity
        ):
            key: object = (
                request,
                frozenset(task.selector.items()),
                task.tolerations,
                task.node_types,
                task.affinity,
                job.pod_affinity,
                job.pod_anti_affinity,
                frozenset(job.labels.items()),
            )
        elif job.labels:
            key = (request, frozenset(job.labels.items()))
        else:
            key = request
        task_class = self._classes.get(key)
        if task_class is None:
            mask, sizes = self._mask(task)
            task_class = TaskClass(len(self._classes), task, job, mask, sizes)
            self._classes[key] = task_class
        return task_class

    def devices_only(self, task_class: TaskClass) -> TaskClass:
        """The class with the same devices on the same nodes, without CPU and memory. Classes that differ only in these
        share it."""
        if task_class.devices_only is None:
            request = replace(task_class.request, cpu=0, memory=0)
            key = (
                "devices-only",
                request,
                task_class.mask,
                task_class.pod_affinity,
                task_class.pod_anti_affinity,
                frozenset(task_class.labels.items()),
            )
            devices_only = self._classes.get(key)
            if devices_only is None:
                devices_only = TaskClass(
                    len(self._classes), replace(task_class.task, request=request), task_class.job, task_class.mask, ()
                )
                devices_only.devices_only = devices_only
                self._classes[key] = devices_only
            task_class.devices_only = devices_only
        return task_class.devices_only

    def _mask(self, task: Task) -> tuple[bytes, tuple[int, ...]]:
        """The nodes that a task may use, and the sizes of their devices."""
        key = (_form(task.request), frozenset(task.selector.items()), task.tolerations, task.node_types, task.affinity)
        known = self._masks.get(key)
        if known is None:
            mask = bytes(fit.node_refusal(task, node.source, self._cluster) is None for node in self._nodes)
            sizes = {size for node in self._nodes if mask[node.id] for size in node.sizes}
            known = (mask, tuple(sorted(sizes)))
            self._masks[key] = known
        return known
