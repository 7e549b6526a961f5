"""Kinds of tasks: tasks that ask for the same and may go to the same nodes are decided about once.

Where a task may go at all (labels, taints, types, roles, pool, kind of device) does not change during a cycle, so it
is a mask over the nodes, made once per kind by the rules in `fit/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aliquot.planner.model import GPU, Amount, Job, PodAffinityTerm, Request, Task
from aliquot.planner.placement import fit
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState

NONE, WHOLE, PART, SLICES = range(4)  # what it wants of devices


class TaskClass:
    """What a task asks for, and where it may have it."""

    __slots__ = (
        "amount",
        "bare",
        "cpu",
        "devices",
        "form",
        "id",
        "job",
        "labels",
        "least",
        "mask",
        "memory",
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
        self.bare: TaskClass | None = None
        self.task = task  # one of them, to tell a refusal by
        self.request: Request = request
        self.mask = mask
        self.cpu = request.cpu
        self.memory = request.memory
        self.devices = request.devices
        self.form = SLICES if request.mig else NONE if not request.devices else WHOLE if request.whole else PART
        self.needs: dict[int, tuple[int, int]] = {}
        # While it waits it counts by the smallest device it may use; on the largest it would count least.
        fitting = [size for size in sizes if size >= request.memory_mib] or [0]
        self.amount: Amount = (request.quota(fitting[0]), request.cpu, request.memory)
        self.least: Amount = (request.quota(fitting[-1]), request.cpu, request.memory)
        self.varies = self.least != self.amount  # what it counts depends on the device it gets
        self.pod_affinity: PodAffinityTerm | None = job.pod_affinity
        self.pod_anti_affinity: PodAffinityTerm | None = job.pod_anti_affinity
        self.labels: Mapping[str, str] = job.labels

    def need(self, size: int) -> tuple[int, int]:
        """Milli and MiB of a device of this size."""
        found = self.needs.get(size)
        if found is None:
            if self.request.memory_mib:
                found = (GPU * self.request.memory_mib // size if size else GPU, self.request.memory_mib)
            else:
                found = (self.request.milli, self.request.milli * size // GPU)
            self.needs[size] = found
        return found

    def fits(self, node: NodeState, view: FreeResources) -> bool:
        if self.cpu > view.cpu or self.memory > view.memory or view.pods < 1:
            return False
        if self.form == WHOLE:
            return view.whole >= self.devices
        if self.form == NONE:
            return True
        return self.find_devices(node, view) is not None

    def find_devices(
        self, node: NodeState, view: FreeResources, spread: bool = False, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        """The devices it would get here: the fullest that fit (or the emptiest), ties by number. With `other` they
        must fit there too. None when there are not enough."""
        if self.form == NONE:
            return []
        if self.form == SLICES:
            return self._slices(node, view, other)
        if self.form == WHOLE:
            return self._whole(node, view, other)
        allocs = self.open_to(node, view, other)
        if len(allocs) < self.devices:
            return None
        milli = view.milli
        allocs.sort(key=lambda row: (-milli[row[0]] if spread else milli[row[0]], row[0]))
        return allocs[: self.devices]

    def open_to(self, node: NodeState, view: FreeResources, other: FreeResources | None = None) -> list[DeviceAlloc]:
        """All devices of which a part could be had."""
        milli, mib, sizes, profiles = view.milli, view.mib, node.sizes, node.profiles
        found: list[DeviceAlloc] = []
        for row, size in enumerate(sizes):
            if profiles is not None and profiles[row]:
                continue
            need = self.need(size)
            if milli[row] < need[0] or mib[row] < need[1]:
                continue
            if other is not None and (other.milli[row] < need[0] or other.mib[row] < need[1]):
                continue
            found.append((row, *need))
        return found

    def _whole(self, node: NodeState, view: FreeResources, other: FreeResources | None) -> list[DeviceAlloc] | None:
        if view.whole < self.devices:
            return None
        milli, mib, sizes, profiles = view.milli, view.mib, node.sizes, node.profiles
        allocs: list[DeviceAlloc] = []
        row = -1
        try:
            while len(allocs) < self.devices:
                row = milli.index(GPU, row + 1)
                size = sizes[row]
                if mib[row] < size or (profiles is not None and profiles[row]):
                    continue
                if other is not None and (other.milli[row] < GPU or other.mib[row] < size):
                    continue
                allocs.append((row, GPU, size))
        except ValueError:
            return None
        return allocs

    def _slices(self, node: NodeState, view: FreeResources, other: FreeResources | None) -> list[DeviceAlloc] | None:
        if node.profiles is None:
            return None
        allocs: list[DeviceAlloc] = []
        for profile, count in self.request.mig:
            free = [
                (row, GPU, node.sizes[row])
                for row, name in enumerate(node.profiles)
                if name == profile and view.milli[row] == GPU and (other is None or other.milli[row] == GPU)
            ]
            if len(free) < count:
                return None
            allocs += free[:count]
        return allocs

    def shares_device(self, node: NodeState, view: FreeResources) -> bool:
        """Whether some device that others have a part of can take it."""
        milli, mib = view.milli, view.mib
        for row, size in enumerate(node.sizes):
            if node.profiles is not None and node.profiles[row]:
                continue
            need = self.need(size)
            if (milli[row] < GPU or mib[row] < size) and milli[row] >= need[0] and mib[row] >= need[1]:
                return True
        return False


class TaskClasses:
    """All kinds of a cycle, by what makes them alike."""

    def __init__(self, nodes: list[NodeState]) -> None:
        self._nodes = nodes
        self._task_classes: dict[object, TaskClass] = {}
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
        found = self._task_classes.get(key)
        if found is None:
            mask, sizes = self._mask(task)
            found = TaskClass(len(self._task_classes), task, job, mask, sizes)
            self._task_classes[key] = found
        return found

    def bare(self, task_class: TaskClass) -> TaskClass:
        """The same devices on the same nodes, and nothing else: kinds that differ only in CPU and memory share it."""
        if task_class.bare is None:
            request = replace(task_class.request, cpu=0, memory=0)
            key = (
                "bare",
                request,
                task_class.mask,
                task_class.pod_affinity,
                task_class.pod_anti_affinity,
                frozenset(task_class.labels.items()),
            )
            found = self._task_classes.get(key)
            if found is None:
                found = TaskClass(
                    len(self._task_classes),
                    replace(task_class.task, request=request),
                    task_class.job,
                    task_class.mask,
                    (),
                )
                found.bare = found
                self._task_classes[key] = found
            task_class.bare = found
        return task_class.bare

    def _mask(self, task: Task) -> tuple[bytes, tuple[int, ...]]:
        request = task.request
        form = SLICES if request.mig else NONE if not request.devices else WHOLE if request.whole else PART
        key = (form, frozenset(task.selector.items()), task.tolerations, task.node_types, task.affinity)
        found = self._masks.get(key)
        if found is None:
            mask = bytes(fit.node_refusal(task, node.source, self._cluster) is None for node in self._nodes)
            sizes = {size for node in self._nodes if mask[node.id] for size in node.sizes}
            found = (mask, tuple(sorted(sizes)))
            self._masks[key] = found
        return found
