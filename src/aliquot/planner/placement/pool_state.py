"""All nodes of a pool, kept in the order in which a task would choose them, and a log that takes everything back.

Nodes are numbered by name, so that a tie goes to the first name. For GPU work they stand in one sorted list by how many
whole devices will be free soon: packing walks it upwards from the first node that is free enough, spreading from the
emptiest. A placement moves one node in it. Placement by least fragments has an order for each kind of task instead
(`fragments`). So a choice costs little however many nodes there are, and is made anew
only for what changed.

`mark` and `undo` are a trial: whatever was placed, stopped or put back since the mark is taken back exactly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import mul

from aliquot.planner.jobs import BOUND, NOMINATED, PENDING, RELEASING, RUNNING, JobState, TaskSlot
from aliquot.planner.model import GPU, Amount, Node, Policy
from aliquot.planner.placement import fragmentation
from aliquot.planner.placement.affinity import PodAffinityIndex
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState
from aliquot.planner.placement.task_class import NONE, PART, SLICES, WHOLE, TaskClass

_BITS = 24  # of a key, for the node's number: 16 million nodes
_MASK = (1 << _BITS) - 1
_PLACED, _STOPPED, _KEPT, _PROMISED, _STARTED, _WITHDRAWN, _SEALED, _OPENED = range(8)

Savepoint = tuple[int, dict[int, None]]


class PoolState:
    def __init__(self, nodes: Iterable[Node], policy: Policy) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.nodes = [NodeState(node, number) for number, node in enumerate(ordered)]
        self.by_name = {node.name: node for node in self.nodes}
        self.pod_affinity = PodAffinityIndex()
        self._spread_nodes = policy.gpu == "spread"
        self._spread_cpu = policy.cpu == "spread"
        self._spread_devices = policy.device == "spread"
        words = (policy.gpu, policy.cpu)
        self._fragments_gpu, self._fragments_cpu = (word == fragmentation.WORD for word in words)
        self.fragments = fragmentation.Fragments(self.nodes) if fragmentation.WORD in words else None
        self._packs_devices = not self._spread_nodes and not self._fragments_gpu
        self._order: list[int] = []
        self._cpu_order: list[int] | None = None  # made when first asked for
        self._busy: set[int] = set()
        self.free = 0  # milli of all devices, soon, as they count against quota
        self._log: list[tuple[int, TaskSlot, tuple[NodeState, tuple[DeviceAlloc, ...]] | None]] = []
        self._unplaceable: dict[int, None] = {}  # kinds that fit nowhere; holds until something is given back
        # Nodes that somebody was stopped on, or on which something was taken back: what failed there may fit now.
        self.freed_nodes: list[NodeState] = []

    def open(self) -> None:
        """Sort the nodes, once everybody who holds something has been put in."""
        self._order = sorted(self._key(node) for node in self.nodes if node.sizes)
        self._busy = {node.id for node in self.nodes if node.sizes and node.is_busy()}
        self.free = sum(
            sum(map(mul, node.after_release.milli, node.quota_units)) for node in self.nodes if node.source.ready
        )
        if self.fragments is not None:
            self.fragments.reset()

    # ---------------------------------------------------------------- orders

    def _key(self, node: NodeState) -> int:
        whole = node.after_release.whole
        if self._spread_nodes:
            return (1_000_000 - 1_000_000 * whole // len(node.sizes)) << _BITS | node.id
        return max(whole, 0) << _BITS | node.id

    def _cpu_key(self, node: NodeState) -> int:
        """CPU-only work keeps away from GPUs, then goes where the least (or the most) is left."""
        free = max(node.after_release.cpu, 0)
        if self._spread_cpu:
            free = 1_000_000_000 - 1_000_000_000 * free // max(node.source.cpu, 1)
        return (bool(node.sizes) << 40 | min(free, (1 << 40) - 1)) << _BITS | node.id

    def rank(self, task_class: TaskClass, node: NodeState) -> int:
        """Where a node stands for a kind of task, whether or not it has room for it: smaller is better."""
        return self._cpu_key(node) if task_class.form == NONE else self._key(node)

    def preference(self, task_class: TaskClass, node: NodeState) -> int:
        """Where a node that has room for a kind of task stands: smaller is better."""
        by_fragments = self._by_fragments(task_class)
        return self.rank(task_class, node) if by_fragments is None else by_fragments.key(task_class, node)

    def _by_fragments(self, task_class: TaskClass) -> fragmentation.Fragments | None:
        chosen = self._fragments_cpu if task_class.form == NONE else self._fragments_gpu
        return self.fragments if chosen else None

    def _changed(self, node: NodeState, old: int, old_cpu: int, allocs: Iterable[DeviceAlloc], sign: int) -> None:
        """Put a node in its new place in the orders. `old` was its key before; sign 1: these rows became free."""
        node.version += 1
        if self.fragments is not None:
            self.fragments.changed(node)
        if node.sizes:
            new = self._key(node)
            if new != old:
                order = self._order
                del order[bisect_left(order, old)]
                insort(order, new)
            shared = False
            for row, milli, _ in allocs:
                self.free += sign * milli * node.quota_units[row]
                shared = shared or milli != GPU
            if shared:
                if node.is_busy():
                    self._busy.add(node.id)
                else:
                    self._busy.discard(node.id)
        if self._cpu_order is not None:
            new = self._cpu_key(node)
            if new != old_cpu:
                del self._cpu_order[bisect_left(self._cpu_order, old_cpu)]
                insort(self._cpu_order, new)

    # ---------------------------------------------------------------- choosing

    def find(self, task_class: TaskClass, nominate_only: bool = False) -> NodeState | None:
        """The best node for a task of this kind: one where it can start now, else one where it can soon.
        With `promise_only` it makes no difference whether it can start now."""
        if task_class.id in self._unplaceable:
            return None
        found = self._walk(task_class, nominate_only)
        if found is None and task_class.pod_affinity is None and task_class.pod_anti_affinity is None:
            self._unplaceable[task_class.id] = None
        return found

    def _walk(self, task_class: TaskClass, nominate_only: bool) -> NodeState | None:
        later: NodeState | None = None
        nodes, mask, pod_affinity = (
            self.nodes,
            task_class.mask,
            task_class.pod_affinity or task_class.pod_anti_affinity or self.pod_affinity.watched,
        )
        if task_class.form == PART and self._busy and self._packs_devices:
            # A device that others use is better than a fresh one, even if somebody has to leave it first.
            found = self.best(task_class, [nodes[i] for i in self._busy if mask[i]], nominate_only, shared=True)
            if found is not None:
                return found
        for key in self._candidates(task_class):
            number = key & _MASK
            if not mask[number]:
                continue
            node = nodes[number]
            after_release = node.after_release
            if not task_class.fits(node, after_release) or (
                pod_affinity and not self.pod_affinity.allows(task_class, node)
            ):
                continue
            if nominate_only or node.now is after_release or self.starts(task_class, node):
                return node
            if later is None:
                later = node
        return later

    def _candidates(self, task_class: TaskClass) -> Iterable[int]:
        by_fragments = self._by_fragments(task_class)
        if by_fragments is not None:
            return by_fragments.order(task_class)
        if task_class.form == NONE:
            if self._cpu_order is None:
                self._cpu_order = sorted(self._cpu_key(node) for node in self.nodes)
            return self._cpu_order
        if self._spread_nodes or task_class.form == SLICES:
            return self._order
        start = task_class.devices if task_class.form == WHOLE else 1
        if task_class.form == PART and task_class.devices > 1:
            start = 0
        order = self._order
        return order if not start else order[bisect_left(order, start << _BITS) :]

    def best(
        self, task_class: TaskClass, nodes: Iterable[NodeState], nominate_only: bool = False, shared: bool = False
    ) -> NodeState | None:
        """The best of these nodes; with `shared` only by devices that others use too."""
        best: tuple[bool, bool, int] | None = None
        found = None
        pod_affinity = task_class.pod_affinity or task_class.pod_anti_affinity or self.pod_affinity.watched
        for node in nodes:
            if not task_class.mask[node.id] or not task_class.fits(node, node.after_release):
                continue
            sharing = (
                task_class.form == PART and self._packs_devices and task_class.shares_device(node, node.after_release)
            )
            if (shared and not sharing) or (pod_affinity and not self.pod_affinity.allows(task_class, node)):
                continue
            waits = not nominate_only and node.now is not node.after_release and not self.starts(task_class, node)
            key = (not sharing, waits, self.preference(task_class, node))
            if best is None or key < best:
                best, found = key, node
        return found

    def starts(self, task_class: TaskClass, node: NodeState) -> bool:
        """Whether it fits now as well as soon, on the same devices."""
        now, after_release = node.now, node.after_release
        if now is after_release:
            return task_class.fits(node, after_release)
        if task_class.cpu > now.cpu or task_class.memory > now.memory or now.pods < 1:
            return False
        return task_class.find_devices(node, after_release, other=now) is not None

    # ---------------------------------------------------------------- doing, and taking back

    def put(self, member: TaskSlot) -> None:
        """Somebody who is there already, before the nodes are sorted."""
        node, task = member.node, member.task
        assert node is not None
        node.tasks[member] = None
        request = task.request
        if member.state == RELEASING:
            node.allocate(node.split(), request.cpu, request.memory, member.allocs)
        elif member.state == NOMINATED:
            node.split()
            node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
        else:
            node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
            if node.now is not node.after_release:
                node.allocate(node.now, request.cpu, request.memory, member.allocs)

    def enter(self, member: TaskSlot, sign: int) -> None:
        """Somebody who is there, once the nodes are sorted; with sign -1 somebody who is gone."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        request = member.task.request
        old, old_cpu = self._keys(node)
        if sign > 0:
            self.put(member)
        else:
            if member.state == RELEASING:
                node.release(node.split(), request.cpu, request.memory, allocs)
            else:
                node.release(node.after_release, request.cpu, request.memory, allocs)
                if node.now is not node.after_release:
                    node.release(node.now, request.cpu, request.memory, allocs)
            node.merge()
            del node.tasks[member]
        if member.state != RELEASING:
            self._changed(node, old, old_cpu, allocs, -sign)
        if self.pod_affinity.watched:
            self.pod_affinity.enter(member, sign)
        self._unplaceable = {}

    def rest(self) -> None:
        """After a trial that was taken back whole."""
        for node in dict.fromkeys(self.freed_nodes):
            node.merge()
        self.freed_nodes.clear()

    def place(self, member: TaskSlot, task_class: TaskClass, node: NodeState, promise: bool = False) -> None:
        """Give a task its place: from now on, or (`promise`, or where it cannot start yet) as soon as it is free."""
        after_release, now = node.after_release, node.now
        allocs = None
        if (
            not promise
            and now is not after_release
            and (task_class.form != PART or self._spread_devices or self._fragments_gpu)
        ):
            allocs = self._choose_devices(task_class, node, now)
        if allocs is None:
            allocs = self._choose_devices(task_class, node)
        assert allocs is not None
        self.take(member, task_class, node, tuple(allocs), promise)

    def _choose_devices(
        self, task_class: TaskClass, node: NodeState, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        if self.fragments is not None and self._fragments_gpu and not self._spread_devices:
            return self.fragments.allocs(task_class, node, other)
        return task_class.find_devices(node, node.after_release, self._spread_devices, other)

    def stays(self, member: TaskSlot, task_class: TaskClass) -> bool:
        """Whether the device it shares is the one it would get on its node. Which whole ones makes no difference."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        if task_class.form != PART:
            return True
        best = (
            self._choose_devices(task_class, node)
            if self._fragments_gpu
            else task_class.find_devices(node, node.after_release)
        )
        return best == list(allocs)

    def take(
        self, member: TaskSlot, task_class: TaskClass, node: NodeState, allocs: tuple[DeviceAlloc, ...], promise: bool
    ) -> None:
        """Give a task these devices, from now on if it can be."""
        starts = not promise and (node.now is node.after_release or _has(node.now, task_class, allocs))
        self.settle(member, task_class, node, allocs, BOUND if starts else NOMINATED)

    def settle(
        self, member: TaskSlot, task_class: TaskClass, node: NodeState, allocs: tuple[DeviceAlloc, ...], state: int
    ) -> None:
        """Give a task exactly these rows."""
        old, old_cpu = self._keys(node)
        if state == BOUND:
            if node.now is not node.after_release:
                node.allocate(node.now, task_class.cpu, task_class.memory, allocs)
        else:
            node.split()
        node.allocate(node.after_release, task_class.cpu, task_class.memory, allocs)
        self._changed(node, old, old_cpu, allocs, -1)
        member.state, member.node, member.allocs = state, node, allocs
        member.amount = counted(task_class, node, allocs)
        node.tasks[member] = None
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible)
        if self.pod_affinity.watched:
            self.pod_affinity.enter(member)
        self._log.append((_PLACED, member, None))

    def defer(self, member: TaskSlot) -> None:
        """Turn a start into a promise."""
        node, request = member.node, member.task.request
        assert node is not None
        node.release(node.split(), request.cpu, request.memory, member.allocs)
        member.state = NOMINATED
        self._log.append((_PROMISED, member, None))

    def can_start(self, member: TaskSlot) -> bool:
        """Whether a promised place is free now."""
        assert member.node is not None
        assert member.task_class is not None
        return _has(member.node.now, member.task_class, member.allocs)

    def start(self, member: TaskSlot) -> None:
        """Turn a promise into a start."""
        node, request = member.node, member.task.request
        assert node is not None
        node.allocate(node.split(), request.cpu, request.memory, member.allocs)
        member.state = BOUND
        self._log.append((_STARTED, member, None))

    def withdraw(self, member: TaskSlot) -> None:
        """Take a promise back."""
        assert member.node is not None
        place = (member.node, member.allocs)
        self._leave(member)
        self._unplaceable = {}
        self._log.append((_WITHDRAWN, member, place))

    def seal(self, member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        """Let nobody but this one have what is free of these devices."""
        self._close(node, allocs)
        self._log.append((_SEALED, member, (node, allocs)))

    def unseal(self, member: TaskSlot, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        self._open(node, allocs)
        self._log.append((_OPENED, member, (node, allocs)))

    def _close(self, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        old, old_cpu = self._keys(node)
        node.split()  # for what comes soon alone: what may start now is looked at only where that fits
        node.allocate(node.after_release, 0, 0, allocs)
        node.after_release.pods += 1
        self._changed(node, old, old_cpu, allocs, -1)

    def _open(self, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> None:
        old, old_cpu = self._keys(node)
        node.release(node.after_release, 0, 0, allocs)
        node.after_release.pods -= 1
        self._changed(node, old, old_cpu, allocs, 1)
        self.freed_nodes.append(node)
        self._unplaceable = {}

    def evict(self, member: TaskSlot) -> None:
        """Stop somebody who runs: its place is free soon, not now."""
        assert member.origin is not None
        node, request = member.origin[0], member.task.request
        old, old_cpu = self._keys(node)
        node.split()
        node.release(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old, old_cpu, member.allocs, 1)
        member.state = RELEASING
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible, -1)
        if self.pod_affinity.watched:
            self.pod_affinity.leave(member)
        self.freed_nodes.append(node)
        if len(member.job.members) > 1 and member.job.elastic:
            self._reconsider(member.job)
        self._unplaceable = {}
        self._log.append((_STOPPED, member, None))

    def _reconsider(self, job: JobState) -> None:
        """Who of a job could go alone before may now only go with all the others, wherever they are."""
        for member in job.members:
            if member.origin is not None:
                member.origin[0].version += 1
                self.freed_nodes.append(member.origin[0])

    def cancel_eviction(self, member: TaskSlot) -> None:
        """Let somebody who was stopped in this cycle run on."""
        self._run_on(member)
        self._log.append((_KEPT, member, None))

    def can_cancel_eviction(self, member: TaskSlot) -> bool:
        """Whether the place of somebody who was stopped in this cycle is still free."""
        assert member.origin is not None
        node, allocs, _ = member.origin
        request, after_release = member.task.request, node.after_release
        if request.cpu > after_release.cpu or request.memory > after_release.memory or after_release.pods < 1:
            return False
        return all(after_release.milli[row] >= milli and after_release.mib[row] >= mib for row, milli, mib in allocs)

    def savepoint(self) -> Savepoint:
        unplaceable = self._unplaceable
        self._unplaceable = dict(unplaceable)
        return len(self._log), unplaceable

    def rollback(self, savepoint: Savepoint) -> None:
        length, unplaceable = savepoint
        log = self._log
        while len(log) > length:
            what, member, place = log.pop()
            if member.node is not None:
                self.freed_nodes.append(member.node)
            if what == _PLACED:
                self._leave(member)
            elif what == _STOPPED:
                self._run_on(member)
                if len(member.job.members) > 1 and member.job.elastic:
                    self._reconsider(member.job)
            elif what == _KEPT:
                self.evict(member)
                log.pop()
            elif what == _STARTED:
                request = member.task.request
                assert member.node is not None
                member.node.release(member.node.now, request.cpu, request.memory, member.allocs)
                member.state = NOMINATED
            elif what == _SEALED:
                assert place is not None
                self._open(*place)
            elif what == _OPENED:
                assert place is not None
                self._close(*place)
            elif what == _WITHDRAWN:
                assert place is not None
                assert member.task_class is not None
                self.settle(member, member.task_class, *place, NOMINATED)
                log.pop()
            else:
                request = member.task.request
                assert member.node is not None
                member.node.allocate(member.node.now, request.cpu, request.memory, member.allocs)
                member.state = BOUND
        self._unplaceable = unplaceable

    def touched(self) -> list[TaskSlot]:
        """Whom something happened to in this cycle."""
        return list(dict.fromkeys(member for _, member, _ in self._log))

    def since(self, savepoint: Savepoint) -> list[TaskSlot]:
        """Whom something happened to since the mark, once each, in order."""
        return list(dict.fromkeys(member for _, member, _ in self._log[savepoint[0] :]))

    def _leave(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old, old_cpu = self._keys(node)
        if member.state == BOUND and node.now is not node.after_release:
            node.release(node.now, request.cpu, request.memory, member.allocs)
        node.release(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old, old_cpu, member.allocs, 1)
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible, -1)
        if self.pod_affinity.watched:
            self.pod_affinity.leave(member)
        if member.origin is None or member.origin[0] is not node:
            del node.tasks[member]
        if member.origin is None:
            member.state, member.node, member.allocs = PENDING, None, ()
        else:
            member.state = RELEASING
            member.node, member.allocs, member.amount = member.origin

    def _run_on(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old, old_cpu = self._keys(node)
        node.allocate(node.after_release, request.cpu, request.memory, member.allocs)
        self._changed(node, old, old_cpu, member.allocs, -1)
        member.state = RUNNING
        member.job.queue.add_usage(member.amount, member.job.nonpreemptible)
        if self.pod_affinity.watched:
            self.pod_affinity.enter(member)

    def _keys(self, node: NodeState) -> tuple[int, int]:
        return (self._key(node) if node.sizes else 0), (self._cpu_key(node) if self._cpu_order is not None else 0)


def _has(view: FreeResources, task_class: TaskClass, allocs: Iterable[DeviceAlloc]) -> bool:
    if task_class.cpu > view.cpu or task_class.memory > view.memory or view.pods < 1:
        return False
    return all(view.milli[row] >= milli and view.mib[row] >= mib for row, milli, mib in allocs)


def counted(task_class: TaskClass, node: NodeState, allocs: tuple[DeviceAlloc, ...]) -> Amount:
    """What a placed task counts against quota: by the devices it has."""
    request = task_class.request
    if request.memory_mib and allocs:
        return (request.quota(node.sizes[allocs[0][0]]), request.cpu, request.memory)
    return task_class.amount
