"""The nodes of a pool, sorted in the order in which tasks choose them, and an undo log.

Nodes are numbered by name, so that a tie goes to the first name. For GPU tasks they are in one sorted list, by the
number of devices that are entirely free after release. Packing walks it upwards from the first node with enough free
devices, spreading starts at the emptiest node. A placement moves one node in the list. The placement policy
`least-fragments` sorts the nodes for each class of tasks instead (see `fragmentation`). So the cost of a choice hardly
grows with the number of nodes.

`savepoint` and `rollback` make trials: a rollback takes back exactly what was done since the savepoint. Each operation
logs the function that takes it back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from operator import mul
from typing import Any

from aliquot.planner.jobs import BOUND, NOMINATED, PENDING, RELEASING, RUNNING, JobState, SlotState, TaskSlot
from aliquot.planner.model import GPU, Amount, Node, Policy
from aliquot.planner.placement import fragmentation
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState
from aliquot.planner.placement.pod_affinity import PodAffinityIndex
from aliquot.planner.placement.task_class import FRACTION, MIG, NO_GPU, WHOLE, TaskClass

_BITS = 24  # of a key, for the node's number: 16 million nodes
_MASK = (1 << _BITS) - 1

# The length of the log, and the task classes that fitted no node then.
Savepoint = tuple[int, dict[int, None]]
# A task that was changed, the method that takes the change back, and its arguments after the task. A bound method would
# make a reference cycle, and the memory of a plan would wait for the garbage collector.
_LogEntry = tuple[TaskSlot, Callable[..., None], tuple[Any, ...]]


class PoolState:
    def __init__(self, nodes: Iterable[Node], policy: Policy) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.nodes = [NodeState(node, number) for number, node in enumerate(ordered)]
        self.nodes_by_name = {node.name: node for node in self.nodes}
        self.pod_affinity = PodAffinityIndex()
        self._spread_nodes = policy.gpu == "spread"
        self._spread_cpu = policy.cpu == "spread"
        self._spread_devices = policy.device == "spread"
        policies = (policy.gpu, policy.cpu)
        self._fragments_gpu, self._fragments_cpu = (name == fragmentation.POLICY for name in policies)
        self.fragments = fragmentation.Fragments(self.nodes) if fragmentation.POLICY in policies else None
        self._packs_devices = not self._spread_nodes and not self._fragments_gpu
        self._order: list[int] = []
        self._cpu_order: list[int] | None = None  # made when first asked for
        self._nodes_with_shared_device: set[int] = set()
        self.free = 0  # milli of all devices after release, as they count against quota
        self._log: list[_LogEntry] = []
        # Task classes that fit no node; valid until something is released.
        self._unplaceable: dict[int, None] = {}
        # Nodes on which something was evicted or rolled back: a task that did not fit there may fit now.
        self.freed_nodes: list[NodeState] = []

    def sort_nodes(self) -> None:
        """Call this once all tasks of the snapshot that hold something have been added."""
        self._order = sorted(self._key(node) for node in self.nodes if node.sizes)
        self._nodes_with_shared_device = {node.id for node in self.nodes if node.sizes and node.has_shared_device()}
        self.free = sum(
            sum(map(mul, node.after_release.milli, node.quota_units)) for node in self.nodes if node.source.ready
        )
        if self.fragments is not None:
            self.fragments.reset()

    # ---------------------------------------------------------------- the order of nodes

    def _key(self, node: NodeState) -> int:
        whole = node.after_release.whole
        if self._spread_nodes:
            return (1_000_000 - 1_000_000 * whole // len(node.sizes)) << _BITS | node.id
        return max(whole, 0) << _BITS | node.id

    def _cpu_key(self, node: NodeState) -> int:
        """CPU-only tasks prefer nodes without GPUs, then the node with the least (or the most) CPU left."""
        free = max(node.after_release.cpu, 0)
        if self._spread_cpu:
            free = 1_000_000_000 - 1_000_000_000 * free // max(node.source.cpu, 1)
        return (bool(node.sizes) << 40 | min(free, (1 << 40) - 1)) << _BITS | node.id

    def _keys(self, node: NodeState) -> tuple[int, int]:
        return (self._key(node) if node.sizes else 0), (self._cpu_key(node) if self._cpu_order is not None else 0)

    def rank(self, task_class: TaskClass, node: NodeState) -> int:
        """The rank of a node for a class of tasks, whether or not one fits: smaller is better."""
        return self._cpu_key(node) if task_class.form == NO_GPU else self._key(node)

    def preference(self, task_class: TaskClass, node: NodeState) -> int:
        """The rank of a node on which a task of the class fits: smaller is better."""
        fragments = self._fragments_for(task_class)
        return self.rank(task_class, node) if fragments is None else fragments.key(task_class, node)

    def _fragments_for(self, task_class: TaskClass) -> fragmentation.Fragments | None:
        chosen = self._fragments_cpu if task_class.form == NO_GPU else self._fragments_gpu
        return self.fragments if chosen else None

    def _changed(
        self, node: NodeState, old_key: int, old_cpu_key: int, allocs: Iterable[DeviceAlloc], sign: int
    ) -> None:
        """Sort a node in again after these allocs were released (sign 1) or allocated (sign -1)."""
        node.version += 1
        if self.fragments is not None:
            self.fragments.changed(node)
        if node.sizes:
            key = self._key(node)
            if key != old_key:
                order = self._order
                del order[bisect_left(order, old_key)]
                insort(order, key)
            fraction = False
            for device, milli, _ in allocs:
                self.free += sign * milli * node.quota_units[device]
                fraction = fraction or milli != GPU
            if fraction:
                if node.has_shared_device():
                    self._nodes_with_shared_device.add(node.id)
                else:
                    self._nodes_with_shared_device.discard(node.id)
        if self._cpu_order is not None:
            key = self._cpu_key(node)
            if key != old_cpu_key:
                del self._cpu_order[bisect_left(self._cpu_order, old_cpu_key)]
                insort(self._cpu_order, key)

    # ---------------------------------------------------------------- choosing a node

    def find(self, task_class: TaskClass, nominate_only: bool = False) -> NodeState | None:
        """The best node for a task of this class: one where it can start now, else one where it can start after
        release. With `nominate_only` the first is not preferred."""
        if task_class.id in self._unplaceable:
            return None
        node = self._first_fit(task_class, nominate_only)
        if node is None and task_class.pod_affinity is None and task_class.pod_anti_affinity is None:
            self._unplaceable[task_class.id] = None
        return node

    def _first_fit(self, task_class: TaskClass, nominate_only: bool) -> NodeState | None:
        later: NodeState | None = None
        nodes, mask = self.nodes, task_class.mask
        affinity = self.pod_affinity if self.pod_affinity.applies_to(task_class) else None
        if task_class.form == FRACTION and self._nodes_with_shared_device and self._packs_devices:
            # A device that is shared already is better than a free one, even if a task has to end on it first.
            candidates = [nodes[number] for number in self._nodes_with_shared_device if mask[number]]
            best = self.best(task_class, candidates, nominate_only, shared=True)
            if best is not None:
                return best
        for key in self._candidates(task_class):
            number = key & _MASK
            if not mask[number]:
                continue
            node = nodes[number]
            after_release = node.after_release
            if not task_class.fits(node, after_release) or (affinity and not affinity.allows(task_class, node)):
                continue
            if nominate_only or node.now is after_release or self.starts_now(task_class, node):
                return node
            if later is None:
                later = node
        return later

    def _candidates(self, task_class: TaskClass) -> Iterable[int]:
        """Keys of nodes, best first."""
        fragments = self._fragments_for(task_class)
        if fragments is not None:
            return fragments.order(task_class)
        if task_class.form == NO_GPU:
            if self._cpu_order is None:
                self._cpu_order = sorted(self._cpu_key(node) for node in self.nodes)
            return self._cpu_order
        if self._spread_nodes or task_class.form == MIG:
            return self._order
        start = task_class.devices if task_class.form == WHOLE else 1
        if task_class.form == FRACTION and task_class.devices > 1:
            start = 0
        order = self._order
        return order if not start else order[bisect_left(order, start << _BITS) :]

    def best(
        self, task_class: TaskClass, nodes: Iterable[NodeState], nominate_only: bool = False, shared: bool = False
    ) -> NodeState | None:
        """The best of these nodes; with `shared` only nodes where it fits on a device that is shared already."""
        best_key: tuple[bool, bool, int] | None = None
        best_node = None
        affinity = self.pod_affinity if self.pod_affinity.applies_to(task_class) else None
        for node in nodes:
            if not task_class.mask[node.id] or not task_class.fits(node, node.after_release):
                continue
            sharing = (
                task_class.form == FRACTION
                and self._packs_devices
                and task_class.fits_shared_device(node, node.after_release)
            )
            if (shared and not sharing) or (affinity and not affinity.allows(task_class, node)):
                continue
            waits = not nominate_only and node.now is not node.after_release and not self.starts_now(task_class, node)
            key = (not sharing, waits, self.preference(task_class, node))
            if best_key is None or key < best_key:
                best_key, best_node = key, node
        return best_node

    def starts_now(self, task_class: TaskClass, node: NodeState) -> bool:
        """Whether it fits now as well as after release, on the same devices."""
        now, after_release = node.now, node.after_release
        if now is after_release:
            return task_class.fits(node, after_release)
        if task_class.cpu > now.cpu or task_class.memory > now.memory or now.pods < 1:
            return False
        return task_class.find_devices(node, after_release, other=now) is not None

    # ---------------------------------------------------------------- tasks of the snapshot

    def add(self, member: TaskSlot) -> None:
        """Allocate what a task of the snapshot holds, before the nodes are sorted."""
        node, request = member.node, member.task.request
        assert node is not None
        node.tasks[member] = None
        if member.state is RELEASING:
            node.allocate(node.split(), request.cpu, request.memory, member.allocs)
        elif member.state is NOMINATED:
            node.split()
            node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
        else:
            node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
            if node.now is not node.after_release:
                node.allocate(node.now, request.cpu, request.memory, member.allocs)

    def add_sorted(self, member: TaskSlot) -> None:
        """Allocate what a task of the snapshot holds, after the nodes are sorted."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        keys = self._keys(node)
        self.add(member)
        if member.state is not RELEASING:
            self._changed(node, *keys, allocs, -1)
        if self.pod_affinity.terms:
            self.pod_affinity.add(member)
        self._unplaceable = {}

    def remove_sorted(self, member: TaskSlot) -> None:
        """Release what a task of the snapshot held, after the nodes are sorted."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        request = member.task.request
        keys = self._keys(node)
        if member.state is RELEASING:
            node.release(node.split(), request.cpu, request.memory, allocs)
        else:
            node.release(node.after_release, request.cpu, request.memory, allocs)
            if node.now is not node.after_release:
                node.release(node.now, request.cpu, request.memory, allocs)
        node.merge()
        del node.tasks[member]
        if member.state is not RELEASING:
            self._changed(node, *keys, allocs, 1)
        if self.pod_affinity.terms:
            self.pod_affinity.remove(member)
        self._unplaceable = {}

    # ---------------------------------------------------------------- trials

    def savepoint(self) -> Savepoint:
        unplaceable = self._unplaceable
        self._unplaceable = dict(unplaceable)
        return len(self._log), unplaceable

    def rollback(self, savepoint: Savepoint) -> None:
        length, unplaceable = savepoint
        log = self._log
        while len(log) > length:
            member, undo, arguments = log.pop()
            if member.node is not None:
                self.freed_nodes.append(member.node)
            undo(self, member, *arguments)
        self._unplaceable = unplaceable

    def merge_views(self) -> None:
        """Call this after all that a cycle did was rolled back."""
        for node in dict.fromkeys(self.freed_nodes):
            node.merge()
        self.freed_nodes.clear()

    def changed_tasks(self) -> list[TaskSlot]:
        """The tasks that this cycle changed."""
        return list(dict.fromkeys(member for member, _, _ in self._log))

    def changed_since(self, savepoint: Savepoint) -> list[TaskSlot]:
        """The tasks that were changed since the savepoint, once each, in order."""
        return list(dict.fromkeys(member for member, _, _ in self._log[savepoint[0] :]))

    # ---------------------------------------------------------------- place, and take the placement back

    def place(self, member: TaskSlot, task_class: TaskClass, node: NodeState, nominate_only: bool = False) -> None:
        """Bind a task to a node. Nominate it instead with `nominate_only`, or where it cannot start yet."""
        after_release, now = node.after_release, node.now
        allocs = None
        if (
            not nominate_only
            and now is not after_release
            and (task_class.form != FRACTION or self._spread_devices or self._fragments_gpu)
        ):
            allocs = self._choose_devices(task_class, node, now)
        if allocs is None:
            allocs = self._choose_devices(task_class, node)
        assert allocs is not None
        self.place_on(member, task_class, node, tuple(allocs), nominate_only)

    def _choose_devices(
        self, task_class: TaskClass, node: NodeState, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        if self.fragments is not None and self._fragments_gpu and not self._spread_devices:
            return self.fragments.choose_devices(task_class, node, other)
        return task_class.find_devices(node, node.after_release, self._spread_devices, other)

    def place_on(
        self,
        member: TaskSlot,
        task_class: TaskClass,
        node: NodeState,
        allocs: tuple[DeviceAlloc, ...],
        nominate_only: bool,
    ) -> None:
        """The same, on these devices."""
        starts = not nominate_only and (
            node.now is node.after_release or node.now.has(task_class.cpu, task_class.memory, allocs)
        )
        self.allocate(member, task_class, node, allocs, BOUND if starts else NOMINATED)

    def allocate(
        self,
        member: TaskSlot,
        task_class: TaskClass,
        node: NodeState,
        allocs: tuple[DeviceAlloc, ...],
        state: SlotState,
    ) -> None:
        """Bind or nominate (`state`) a task on these devices, without a check."""
        self._allocate(member, task_class, node, allocs, state)
        self._log.append((member, PoolState._deallocate, ()))

    def _allocate(
        self,
        member: TaskSlot,
        task_class: TaskClass,
        node: NodeState,
        allocs: tuple[DeviceAlloc, ...],
        state: SlotState,
    ) -> None:
        old_key, old_cpu_key = self._keys(node)
        if state is BOUND:
            if node.now is not node.after_release:
                node.allocate(node.now, task_class.cpu, task_class.memory, allocs)
        else:
            node.split()
        node.allocate(node.after_release, task_class.cpu, task_class.memory, allocs)
        self._changed(node, old_key, old_cpu_key, allocs, -1)
        member.state, member.node, member.allocs = state, node, allocs
        member.amount = quota_amount(task_class, node, allocs)
        node.tasks[member] = None
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible)
        if self.pod_affinity.terms:
            self.pod_affinity.add(member)

    def _deallocate(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old_key, old_cpu_key = self._keys(node)
        if member.state is BOUND and node.now is not node.after_release:
            node.release(node.now, request.cpu, request.memory, member.allocs)
        node.release(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old_key, old_cpu_key, member.allocs, 1)
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible, -1)
        if self.pod_affinity.terms:
            self.pod_affinity.remove(member)
        if member.origin is None or member.origin[0] is not node:
            del node.tasks[member]
        if member.origin is None:
            member.state, member.node, member.allocs = PENDING, None, ()
        else:
            member.state = RELEASING
            member.node, member.allocs, member.amount = member.origin

    def withdraw(self, member: TaskSlot) -> None:
        """Take a nomination back."""
        node, task_class = member.node, member.task_class
        arguments = (task_class, node, member.allocs, NOMINATED)
        self._deallocate(member)
        self._unplaceable = {}
        self._log.append((member, PoolState._allocate, arguments))

    # ---------------------------------------------------------------- start and defer

    def can_start(self, member: TaskSlot) -> bool:
        """Whether the devices of a nominated task are free now."""
        node, task_class = member.node, member.task_class
        assert node is not None
        assert task_class is not None
        return node.now.has(task_class.cpu, task_class.memory, member.allocs)

    def start(self, member: TaskSlot) -> None:
        """Bind a nominated task."""
        self._start(member)
        self._log.append((member, PoolState._defer, ()))

    def defer(self, member: TaskSlot) -> None:
        """Turn a binding of this cycle into a nomination."""
        self._defer(member)
        self._log.append((member, PoolState._start, ()))

    def _start(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        node.allocate(node.split(), request.cpu, request.memory, member.allocs)
        member.state = BOUND

    def _defer(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        node.release(node.split(), request.cpu, request.memory, member.allocs)
        member.state = NOMINATED

    # ---------------------------------------------------------------- evict, and cancel the eviction

    def evict(self, member: TaskSlot) -> None:
        """Evict a running task: what it holds is free after release, not now."""
        self._evict(member)
        self._log.append((member, PoolState._undo_eviction, ()))

    def can_cancel_eviction(self, member: TaskSlot) -> bool:
        """Whether the devices of a task that was evicted in this cycle are still free."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        request = member.task.request
        return node.after_release.has(request.cpu, request.memory, allocs)

    def cancel_eviction(self, member: TaskSlot) -> None:
        """Let a task that was evicted in this cycle run on."""
        self._run_on(member)
        self._log.append((member, PoolState._evict, ()))

    def would_get_same_device(self, member: TaskSlot, task_class: TaskClass) -> bool:
        """Whether an evicted task would get the device that it shared, if it were placed on its node again. Which whole
        devices it gets makes no difference."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        if task_class.form != FRACTION:
            return True
        if self._fragments_gpu:
            best = self._choose_devices(task_class, node)
        else:
            best = task_class.find_devices(node, node.after_release)
        return best == list(allocs)

    def _evict(self, member: TaskSlot) -> None:
        assert member.origin is not None
        node, request = member.origin[0], member.task.request
        old_key, old_cpu_key = self._keys(node)
        node.split()
        node.release(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old_key, old_cpu_key, member.allocs, 1)
        member.state = RELEASING
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible, -1)
        if self.pod_affinity.terms:
            self.pod_affinity.remove(member)
        self.freed_nodes.append(node)
        self._touch_nodes_of_elastic(member.job)
        self._unplaceable = {}

    def _undo_eviction(self, member: TaskSlot) -> None:
        self._run_on(member)
        self._touch_nodes_of_elastic(member.job)

    def _run_on(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old_key, old_cpu_key = self._keys(node)
        node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old_key, old_cpu_key, member.allocs, -1)
        member.state = RUNNING
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible)
        if self.pod_affinity.terms:
            self.pod_affinity.add(member)

    def _touch_nodes_of_elastic(self, job: JobState) -> None:
        """With one task less, tasks of an elastic job that could be evicted alone may have to go together, on whatever
        node they are: what an eviction costs there is worked out again."""
        if len(job.members) > 1 and job.elastic:
            for member in job.members:
                if member.origin is not None:
                    member.origin[0].version += 1
                    self.freed_nodes.append(member.origin[0])

    # ---------------------------------------------------------------- reserve capacity for a starving job

    def reserve(self, member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        """Withhold what is free of these devices from all tasks. `member` is the task it is reserved for."""
        self._reserve(member, node, allocs)
        self._log.append((member, PoolState._unreserve, (node, allocs)))

    def unreserve(self, member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        self._unreserve(member, node, allocs)
        self._log.append((member, PoolState._reserve, (node, allocs)))

    def _reserve(self, _member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        old_key, old_cpu_key = self._keys(node)
        node.split()  # in the view after release alone: a task starts now only where it fits after release too
        node.allocate(node.after_release, 0, 0, allocs)
        node.after_release.pods += 1
        self._changed(node, old_key, old_cpu_key, allocs, -1)

    def _unreserve(self, _member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        old_key, old_cpu_key = self._keys(node)
        node.release(node.after_release, 0, 0, allocs)
        node.after_release.pods -= 1
        self._changed(node, old_key, old_cpu_key, allocs, 1)
        self.freed_nodes.append(node)
        self._unplaceable = {}


def quota_amount(task_class: TaskClass, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> Amount:
    """What a placed task counts against quota, by the devices that it has."""
    request = task_class.request
    if request.memory_mib and allocs:
        return (request.quota(node.sizes[allocs[0][0]]), request.cpu, request.memory)
    return task_class.amount
