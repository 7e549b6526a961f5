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

from aliquot.planner.jobs import BOUND, PENDING, RESERVED, RUNNING, STOPPED, JobState, TaskSlot
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
        self.neighbours = PodAffinityIndex()
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
        self._hopeless: dict[int, None] = {}  # kinds that fit nowhere; holds until something is given back
        # Nodes that somebody was stopped on, or on which something was taken back: what failed there may fit now.
        self.gained: list[NodeState] = []

    def open(self) -> None:
        """Sort the nodes, once everybody who holds something has been put in."""
        self._order = sorted(self._key(node) for node in self.nodes if node.sizes)
        self._busy = {node.id for node in self.nodes if node.sizes and node.is_busy()}
        self.free = sum(sum(map(mul, node.soon.milli, node.worth)) for node in self.nodes if node.source.ready)
        if self.fragments is not None:
            self.fragments.reset()

    # ---------------------------------------------------------------- orders

    def _key(self, node: NodeState) -> int:
        whole = node.soon.whole
        if self._spread_nodes:
            return (1_000_000 - 1_000_000 * whole // len(node.sizes)) << _BITS | node.id
        return max(whole, 0) << _BITS | node.id

    def _cpu_key(self, node: NodeState) -> int:
        """CPU-only work keeps away from GPUs, then goes where the least (or the most) is left."""
        free = max(node.soon.cpu, 0)
        if self._spread_cpu:
            free = 1_000_000_000 - 1_000_000_000 * free // max(node.source.cpu, 1)
        return (bool(node.sizes) << 40 | min(free, (1 << 40) - 1)) << _BITS | node.id

    def rank(self, kind: TaskClass, node: NodeState) -> int:
        """Where a node stands for a kind of task, whether or not it has room for it: smaller is better."""
        return self._cpu_key(node) if kind.form == NONE else self._key(node)

    def preference(self, kind: TaskClass, node: NodeState) -> int:
        """Where a node that has room for a kind of task stands: smaller is better."""
        by_fragments = self._by_fragments(kind)
        return self.rank(kind, node) if by_fragments is None else by_fragments.key(kind, node)

    def _by_fragments(self, kind: TaskClass) -> fragmentation.Fragments | None:
        chosen = self._fragments_cpu if kind.form == NONE else self._fragments_gpu
        return self.fragments if chosen else None

    def _changed(self, node: NodeState, old: int, old_cpu: int, rows: Iterable[DeviceAlloc], sign: int) -> None:
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
            for row, milli, _ in rows:
                self.free += sign * milli * node.worth[row]
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

    def find(self, kind: TaskClass, promise_only: bool = False) -> NodeState | None:
        """The best node for a task of this kind: one where it can start now, else one where it can soon.
        With `promise_only` it makes no difference whether it can start now."""
        if kind.id in self._hopeless:
            return None
        found = self._walk(kind, promise_only)
        if found is None and kind.near is None and kind.apart is None:
            self._hopeless[kind.id] = None
        return found

    def _walk(self, kind: TaskClass, promise_only: bool) -> NodeState | None:
        later: NodeState | None = None
        nodes, mask, near = self.nodes, kind.mask, kind.near or kind.apart or self.neighbours.watched
        if kind.form == PART and self._busy and self._packs_devices:
            # A device that others use is better than a fresh one, even if somebody has to leave it first.
            found = self.best(kind, [nodes[i] for i in self._busy if mask[i]], promise_only, shared=True)
            if found is not None:
                return found
        for key in self._candidates(kind):
            number = key & _MASK
            if not mask[number]:
                continue
            node = nodes[number]
            soon = node.soon
            if not kind.fits(node, soon) or (near and not self.neighbours.allows(kind, node)):
                continue
            if promise_only or node.now is soon or self.starts(kind, node):
                return node
            if later is None:
                later = node
        return later

    def _candidates(self, kind: TaskClass) -> Iterable[int]:
        by_fragments = self._by_fragments(kind)
        if by_fragments is not None:
            return by_fragments.order(kind)
        if kind.form == NONE:
            if self._cpu_order is None:
                self._cpu_order = sorted(self._cpu_key(node) for node in self.nodes)
            return self._cpu_order
        if self._spread_nodes or kind.form == SLICES:
            return self._order
        start = kind.devices if kind.form == WHOLE else 1
        if kind.form == PART and kind.devices > 1:
            start = 0
        order = self._order
        return order if not start else order[bisect_left(order, start << _BITS) :]

    def best(
        self, kind: TaskClass, nodes: Iterable[NodeState], promise_only: bool = False, shared: bool = False
    ) -> NodeState | None:
        """The best of these nodes; with `shared` only by devices that others use too."""
        best: tuple[bool, bool, int] | None = None
        found = None
        near = kind.near or kind.apart or self.neighbours.watched
        for node in nodes:
            if not kind.mask[node.id] or not kind.fits(node, node.soon):
                continue
            sharing = kind.form == PART and self._packs_devices and kind.shares_device(node, node.soon)
            if (shared and not sharing) or (near and not self.neighbours.allows(kind, node)):
                continue
            waits = not promise_only and node.now is not node.soon and not self.starts(kind, node)
            key = (not sharing, waits, self.preference(kind, node))
            if best is None or key < best:
                best, found = key, node
        return found

    def starts(self, kind: TaskClass, node: NodeState) -> bool:
        """Whether it fits now as well as soon, on the same devices."""
        now, soon = node.now, node.soon
        if now is soon:
            return kind.fits(node, soon)
        if kind.cpu > now.cpu or kind.memory > now.memory or now.pods < 1:
            return False
        return kind.open_rows(node, soon, other=now) is not None

    # ---------------------------------------------------------------- doing, and taking back

    def put(self, member: TaskSlot) -> None:
        """Somebody who is there already, before the nodes are sorted."""
        node, task = member.node, member.task
        assert node is not None
        node.tenants[member] = None
        request = task.request
        if member.state == STOPPED:
            node.take(node.part(), request.cpu, request.memory, member.rows)
        elif member.state == RESERVED:
            node.part()
            node.take(node.soon, request.cpu, request.memory, member.rows)
        else:
            node.take(node.soon, request.cpu, request.memory, member.rows)
            if node.now is not node.soon:
                node.take(node.now, request.cpu, request.memory, member.rows)

    def enter(self, member: TaskSlot, sign: int) -> None:
        """Somebody who is there, once the nodes are sorted; with sign -1 somebody who is gone."""
        assert member.home is not None
        node, rows, _ = member.home
        request = member.task.request
        old, old_cpu = self._keys(node)
        if sign > 0:
            self.put(member)
        else:
            if member.state == STOPPED:
                node.give(node.part(), request.cpu, request.memory, rows)
            else:
                node.give(node.soon, request.cpu, request.memory, rows)
                if node.now is not node.soon:
                    node.give(node.now, request.cpu, request.memory, rows)
            node.join()
            del node.tenants[member]
        if member.state != STOPPED:
            self._changed(node, old, old_cpu, rows, -sign)
        if self.neighbours.watched:
            self.neighbours.enter(member, sign)
        self._hopeless = {}

    def rest(self) -> None:
        """After a trial that was taken back whole."""
        for node in dict.fromkeys(self.gained):
            node.join()
        self.gained.clear()

    def place(self, member: TaskSlot, kind: TaskClass, node: NodeState, promise: bool = False) -> None:
        """Give a task its place: from now on, or (`promise`, or where it cannot start yet) as soon as it is free."""
        soon, now = node.soon, node.now
        rows = None
        if not promise and now is not soon and (kind.form != PART or self._spread_devices or self._fragments_gpu):
            rows = self._rows(kind, node, now)
        if rows is None:
            rows = self._rows(kind, node)
        assert rows is not None
        self.take(member, kind, node, tuple(rows), promise)

    def _rows(self, kind: TaskClass, node: NodeState, other: FreeResources | None = None) -> list[DeviceAlloc] | None:
        if self.fragments is not None and self._fragments_gpu and not self._spread_devices:
            return self.fragments.rows(kind, node, other)
        return kind.open_rows(node, node.soon, self._spread_devices, other)

    def stays(self, member: TaskSlot, kind: TaskClass) -> bool:
        """Whether the device it shares is the one it would get on its node. Which whole ones makes no difference."""
        assert member.home is not None
        node, rows, _ = member.home
        if kind.form != PART:
            return True
        best = self._rows(kind, node) if self._fragments_gpu else kind.open_rows(node, node.soon)
        return best == list(rows)

    def take(
        self, member: TaskSlot, kind: TaskClass, node: NodeState, rows: tuple[DeviceAlloc, ...], promise: bool
    ) -> None:
        """Give a task these devices, from now on if it can be."""
        starts = not promise and (node.now is node.soon or _has(node.now, kind, rows))
        self.settle(member, kind, node, rows, BOUND if starts else RESERVED)

    def settle(
        self, member: TaskSlot, kind: TaskClass, node: NodeState, rows: tuple[DeviceAlloc, ...], state: int
    ) -> None:
        """Give a task exactly these rows."""
        old, old_cpu = self._keys(node)
        if state == BOUND:
            if node.now is not node.soon:
                node.take(node.now, kind.cpu, kind.memory, rows)
        else:
            node.part()
        node.take(node.soon, kind.cpu, kind.memory, rows)
        self._changed(node, old, old_cpu, rows, -1)
        member.state, member.node, member.rows = state, node, rows
        member.amount = counted(kind, node, rows)
        node.tenants[member] = None
        member.job.queue.add_usage(member.amount, member.job.fixed)
        if self.neighbours.watched:
            self.neighbours.enter(member)
        self._log.append((_PLACED, member, None))

    def defer(self, member: TaskSlot) -> None:
        """Turn a start into a promise."""
        node, request = member.node, member.task.request
        assert node is not None
        node.give(node.part(), request.cpu, request.memory, member.rows)
        member.state = RESERVED
        self._log.append((_PROMISED, member, None))

    def can_start(self, member: TaskSlot) -> bool:
        """Whether a promised place is free now."""
        assert member.node is not None
        assert member.kind is not None
        return _has(member.node.now, member.kind, member.rows)

    def start(self, member: TaskSlot) -> None:
        """Turn a promise into a start."""
        node, request = member.node, member.task.request
        assert node is not None
        node.take(node.part(), request.cpu, request.memory, member.rows)
        member.state = BOUND
        self._log.append((_STARTED, member, None))

    def withdraw(self, member: TaskSlot) -> None:
        """Take a promise back."""
        assert member.node is not None
        place = (member.node, member.rows)
        self._leave(member)
        self._hopeless = {}
        self._log.append((_WITHDRAWN, member, place))

    def seal(self, member: TaskSlot, node: NodeState, rows: tuple[DeviceAlloc, ...]) -> None:
        """Let nobody but this one have what is free of these devices."""
        self._close(node, rows)
        self._log.append((_SEALED, member, (node, rows)))

    def unseal(self, member: TaskSlot, node: NodeState, rows: tuple[DeviceAlloc, ...]) -> None:
        self._open(node, rows)
        self._log.append((_OPENED, member, (node, rows)))

    def _close(self, node: NodeState, rows: tuple[DeviceAlloc, ...]) -> None:
        old, old_cpu = self._keys(node)
        node.part()  # for what comes soon alone: what may start now is looked at only where that fits
        node.take(node.soon, 0, 0, rows)
        node.soon.pods += 1
        self._changed(node, old, old_cpu, rows, -1)

    def _open(self, node: NodeState, rows: tuple[DeviceAlloc, ...]) -> None:
        old, old_cpu = self._keys(node)
        node.give(node.soon, 0, 0, rows)
        node.soon.pods -= 1
        self._changed(node, old, old_cpu, rows, 1)
        self.gained.append(node)
        self._hopeless = {}

    def stop(self, member: TaskSlot) -> None:
        """Stop somebody who runs: its place is free soon, not now."""
        assert member.home is not None
        node, request = member.home[0], member.task.request
        old, old_cpu = self._keys(node)
        node.part()
        node.give(node.soon, request.cpu, request.memory, member.rows)
        self._changed(node, old, old_cpu, member.rows, 1)
        member.state = STOPPED
        member.job.queue.add_usage(member.amount, member.job.fixed, -1)
        if self.neighbours.watched:
            self.neighbours.leave(member)
        self.gained.append(node)
        if len(member.job.members) > 1 and member.job.elastic:
            self._reconsider(member.job)
        self._hopeless = {}
        self._log.append((_STOPPED, member, None))

    def _reconsider(self, job: JobState) -> None:
        """Who of a job could go alone before may now only go with all the others, wherever they are."""
        for member in job.members:
            if member.home is not None:
                member.home[0].version += 1
                self.gained.append(member.home[0])

    def keep(self, member: TaskSlot) -> None:
        """Let somebody who was stopped in this cycle run on."""
        self._run_on(member)
        self._log.append((_KEPT, member, None))

    def can_keep(self, member: TaskSlot) -> bool:
        """Whether the place of somebody who was stopped in this cycle is still free."""
        assert member.home is not None
        node, rows, _ = member.home
        request, soon = member.task.request, node.soon
        if request.cpu > soon.cpu or request.memory > soon.memory or soon.pods < 1:
            return False
        return all(soon.milli[row] >= milli and soon.mib[row] >= mib for row, milli, mib in rows)

    def mark(self) -> Savepoint:
        hopeless = self._hopeless
        self._hopeless = dict(hopeless)
        return len(self._log), hopeless

    def undo(self, mark: Savepoint) -> None:
        length, hopeless = mark
        log = self._log
        while len(log) > length:
            what, member, place = log.pop()
            if member.node is not None:
                self.gained.append(member.node)
            if what == _PLACED:
                self._leave(member)
            elif what == _STOPPED:
                self._run_on(member)
                if len(member.job.members) > 1 and member.job.elastic:
                    self._reconsider(member.job)
            elif what == _KEPT:
                self.stop(member)
                log.pop()
            elif what == _STARTED:
                request = member.task.request
                assert member.node is not None
                member.node.give(member.node.now, request.cpu, request.memory, member.rows)
                member.state = RESERVED
            elif what == _SEALED:
                assert place is not None
                self._open(*place)
            elif what == _OPENED:
                assert place is not None
                self._close(*place)
            elif what == _WITHDRAWN:
                assert place is not None
                assert member.kind is not None
                self.settle(member, member.kind, *place, RESERVED)
                log.pop()
            else:
                request = member.task.request
                assert member.node is not None
                member.node.take(member.node.now, request.cpu, request.memory, member.rows)
                member.state = BOUND
        self._hopeless = hopeless

    def touched(self) -> list[TaskSlot]:
        """Whom something happened to in this cycle."""
        return list(dict.fromkeys(member for _, member, _ in self._log))

    def since(self, mark: Savepoint) -> list[TaskSlot]:
        """Whom something happened to since the mark, once each, in order."""
        return list(dict.fromkeys(member for _, member, _ in self._log[mark[0] :]))

    def _leave(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old, old_cpu = self._keys(node)
        if member.state == BOUND and node.now is not node.soon:
            node.give(node.now, request.cpu, request.memory, member.rows)
        node.give(node.soon, request.cpu, request.memory, member.rows)
        self._changed(node, old, old_cpu, member.rows, 1)
        member.job.queue.add_usage(member.amount, member.job.fixed, -1)
        if self.neighbours.watched:
            self.neighbours.leave(member)
        if member.home is None or member.home[0] is not node:
            del node.tenants[member]
        if member.home is None:
            member.state, member.node, member.rows = PENDING, None, ()
        else:
            member.state = STOPPED
            member.node, member.rows, member.amount = member.home

    def _run_on(self, member: TaskSlot) -> None:
        node, request = member.node, member.task.request
        assert node is not None
        old, old_cpu = self._keys(node)
        node.take(node.soon, request.cpu, request.memory, member.rows)
        self._changed(node, old, old_cpu, member.rows, -1)
        member.state = RUNNING
        member.job.queue.add_usage(member.amount, member.job.fixed)
        if self.neighbours.watched:
            self.neighbours.enter(member)

    def _keys(self, node: NodeState) -> tuple[int, int]:
        return (self._key(node) if node.sizes else 0), (self._cpu_key(node) if self._cpu_order is not None else 0)


def _has(view: FreeResources, kind: TaskClass, rows: Iterable[DeviceAlloc]) -> bool:
    if kind.cpu > view.cpu or kind.memory > view.memory or view.pods < 1:
        return False
    return all(view.milli[row] >= milli and view.mib[row] >= mib for row, milli, mib in rows)


def counted(kind: TaskClass, node: NodeState, rows: tuple[DeviceAlloc, ...]) -> Amount:
    """What a placed task counts against quota: by the devices it has."""
    request = kind.request
    if request.memory_mib and rows:
        return (request.quota(node.sizes[rows[0][0]]), request.cpu, request.memory)
    return kind.amount
