"""Placement that leaves the least room that nobody can use: the policy's word `least-fragments`.

What is free on a node is worth what the tasks of this cluster could do with it. Every task of the snapshot, running or
waiting, is a sample of what will be asked for next; those that ask for about the same are one *shape*. For each shape a
node's worth has two parts, both in thousandths of a GPU: the devices free enough for one of it, and what as many of
it as fit at once, by devices and by cores, would fill. A task goes where it takes the least worth from the others, a
part of a device to the device of which that holds. Ties go to the node with fewer free devices, then to the name.

Three things make a shape weigh more, measured on the traces in `tests/bench/openb`:

    scarce  it may use few of the devices, so those are kept for it
    small   small parts are what remainders can still be used for
    wide    devices that are free together are hard to come by

How often a shape occurs counts by powers of two, so that weights, and with them all that was worked out, stay as they
are while jobs come and go. All numbers are integers: a plan does not depend on the order in which it was added up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import isqrt

from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState
from aliquot.planner.placement.task_class import NONE, PART, SLICES, TaskClass

WORD = "least-fragments"
_BITS = 24  # of a key, for the node's number
_WHOLE_BITS = 16  # of a key, for a node's free devices
_FINE = 16  # units of a weight's factors
# Cores that differ by less than an eighth are one shape: few shapes are quick to look at, and change less.
_CPU_BITS = 4
_QUARTER = 250

# States whose worth is remembered, at most; some dozens of MiB.
_REMEMBERED = 200_000

# What makes tasks one shape: devices, milli, MiB, cores, and where it may go.
Shape = tuple[int, int, int, int, bytes]
# Of one size: devices, milli, and (cores, weight) from few cores to many.
Wants = tuple[int, int, list[tuple[int, int]]]
# Of a node, all that its worth depends on: its class, free cores, and what is free of its devices, sorted.
State = tuple[int, int, tuple[int, ...]]


class Order:
    """The nodes that have room for tasks that ask for the same, best first, as far as the changes have been read."""

    __slots__ = ("at", "key_of", "keys", "losses")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.key_of: dict[int, int] = {}
        self.at = -1
        self.losses: dict[State, tuple[int, int]] = {}


class Fragments:
    def __init__(self, nodes: list[NodeState]) -> None:
        self._nodes = nodes
        self._shapes: dict[int, Shape] = {}  # by kind
        self._counts: dict[Shape, int] = {}  # tasks
        self._stale = True  # the weights, and all that was worked out from them
        self._orders: dict[int, Order] = {}  # by kind
        self._alike: dict[object, Order] = {}  # by what it asks for; kinds that differ in labels share one
        self._masks: list[bytes] | None = None  # where shapes may go
        self._allowed: dict[bytes, int] = {}  # devices there
        self._class_of: list[int] = []  # by node; those of one class are of use to the same shapes
        self._examples: list[NodeState] = []  # one of each class
        self._wants: list[list[Wants]] = []  # by class
        self._worth: dict[State, int] = {}
        self._changes: list[int] = []  # nodes that changed, in order
        self._devices = sum(len(node.sizes) for node in nodes)

    # ---------------------------------------------------------------- what is asked for

    def count(self, task_class: TaskClass, sign: int = 1) -> None:
        """One task more (or less) in the snapshot."""
        if task_class.form in (NONE, SLICES):  # slices are taken whole, and cores alone leave no device unused
            return
        shape = self._shapes.get(task_class.id)
        if shape is None:
            shape = self._shapes[task_class.id] = _shape(task_class)
        before = self._counts.get(shape, 0)
        self._counts[shape] = before + sign
        if _digits(before) != _digits(before + sign):
            self._stale = True

    def settle(self) -> None:
        """Weigh the shapes, before a plan. What was worked out stays as long as they weigh what they did."""
        if self._stale or len(self._worth) > _REMEMBERED:
            self._stale = False
            self._weigh()

    def _weigh(self) -> None:
        self._worth = {}
        self.reset()
        shapes = [(shape, _digits(count)) for shape, count in sorted(self._counts.items()) if count]
        masks = sorted({shape[4] for shape, _ in shapes})
        if masks != self._masks:
            self._masks = masks
            self._classify()
        weighed = [(shape, self._factor(shape) * count) for shape, count in shapes]
        self._wants = [_wants(weighed, node) for node in self._examples]

    def _classify(self) -> None:
        self._class_of, self._examples = [], []
        classes: dict[object, int] = {}
        for node in self._nodes:
            key = (max(node.sizes, default=0), *(mask[node.id] for mask in self._masks or ()))
            found = classes.get(key)
            if found is None:
                found = classes[key] = len(self._examples)
                self._examples.append(node)
            self._class_of.append(found)
        self._allowed = {
            mask: sum(len(node.sizes) for node in self._nodes if mask[node.id]) for mask in self._masks or ()
        }

    def _factor(self, shape: Shape) -> int:
        devices, milli, _, _, mask = shape
        scarce = _FINE * self._devices // max(self._allowed[mask], 1)
        small = (8 * GPU // max(milli, 1)) ** 2
        wide = isqrt(devices * _FINE * _FINE)
        return scarce * small * wide

    # ---------------------------------------------------------------- what is left

    def changed(self, node: NodeState) -> None:
        self._changes.append(node.id)

    def reset(self) -> None:
        """Everything may have changed."""
        self._orders, self._alike, self._changes = {}, {}, []

    def order(self, task_class: TaskClass) -> list[int]:
        """Keys of the nodes that have room for it soon, best first; the last bits are a node's number."""
        order = self._order(task_class)
        changes = self._changes
        if len(changes) > 8 * len(self._nodes) + 1000:  # whoever has not read them yet starts over
            for other in self._alike.values():
                other.at = -1
            changes.clear()
        if order.at < 0:
            self._fill(order, task_class)
        elif order.at < len(changes):
            keys, key_of, nodes, mask = order.keys, order.key_of, self._nodes, task_class.mask
            for number in set(changes[order.at :]):
                if not mask[number]:
                    continue
                node = nodes[number]
                old = key_of.pop(number, None)
                if old is not None:
                    del keys[bisect_left(keys, old)]
                if task_class.fits(node, node.after_release):
                    new = key_of[number] = self._key(task_class, node, order)
                    insort(keys, new)
        order.at = len(changes)
        return order.keys

    def _order(self, task_class: TaskClass) -> Order:
        order = self._orders.get(task_class.id)
        if order is None:
            order = self._orders[task_class.id] = self._alike.setdefault((task_class.request, task_class.mask), Order())
        return order

    def _fill(self, order: Order, task_class: TaskClass) -> None:
        order.key_of = {
            node.id: self._key(task_class, node, order)
            for node in self._nodes
            if task_class.mask[node.id] and task_class.fits(node, node.after_release)
        }
        order.keys = sorted(order.key_of.values())

    def key(self, task_class: TaskClass, node: NodeState) -> int:
        """Where a node that has room stands: smaller is better."""
        return self._key(task_class, node, self._order(task_class))

    def _key(self, task_class: TaskClass, node: NodeState, order: Order) -> int:
        after_release = node.after_release
        loss = self._loss(task_class, node, order)[0]
        if task_class.form == NONE:  # away from devices, then where the fewest cores are left
            left = min(max(after_release.cpu - task_class.cpu, 0), (1 << 40) - 1)
            return (bool(node.sizes) << 160 | loss << 40 | left) << _BITS | node.id
        return (loss << _WHOLE_BITS | max(after_release.whole, 0)) << _BITS | node.id

    def _loss(self, task_class: TaskClass, node: NodeState, order: Order) -> tuple[int, int]:
        """The worth that others lose when it goes here, and for a part of one device: how free that device is."""
        after_release = node.after_release
        state = (self._class_of[node.id], after_release.cpu, _free(node, after_release.milli))
        found = order.losses.get(state)
        if found is None:
            found = order.losses[state] = self._least(task_class, node, state)
        return found

    def _least(self, task_class: TaskClass, node: NodeState, state: State) -> tuple[int, int]:
        number, cpu, free = state
        before, cpu = self._of(state), cpu - task_class.cpu
        if task_class.form == PART and task_class.devices == 1:
            part = task_class.need(max(node.sizes))[0]
            best = None
            for at, milli in enumerate(free):
                if milli < part or (at and free[at - 1] == milli):
                    continue
                left = tuple(sorted((*free[:at], milli - part, *free[at + 1 :])))
                loss = before - self._of((number, cpu, left))
                if best is None or loss < best[0]:
                    best = (loss, milli)
            return best or (before, GPU)  # no device of the largest size: any will do
        after = list(node.after_release.milli)
        for row, milli, _ in task_class.find_devices(node, node.after_release) or ():
            after[row] -= milli
        return before - self._of((number, cpu, _free(node, after))), 0

    def _of(self, state: State) -> int:
        found = self._worth.get(state)
        if found is None:
            found = self._worth[state] = worth(self._wants[state[0]], state[1], state[2])
        return found

    def allocs(
        self, task_class: TaskClass, node: NodeState, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        """The devices a task gets on a node, soon. With `other` they must be free there too."""
        view = node.after_release
        if task_class.form != PART or task_class.devices != 1:
            return task_class.find_devices(node, view, other=other)
        wished = self._loss(task_class, node, self._order(task_class))[1]
        best: tuple[int, int, DeviceAlloc] | None = None
        for row in task_class.open_to(node, view, other):
            free = view.milli[row[0]]
            # The device that was found best; else, where that is not open or of another size, the fullest.
            key = (0 if free == wished else free, row[0], row)
            if best is None or key < best:
                best = key
        return None if best is None else [best[2]]


def worth(wants: list[Wants], cpu: int, free: tuple[int, ...]) -> int:
    """What shapes could use of a node with so many free cores and these free parts of devices."""
    if not free or free[-1] <= 0:
        return 0
    total = 0
    for devices, milli, some in wants:
        at = bisect_left(free, milli)
        count = len(free) - at
        if count < devices or some[0][0] > cpu:
            continue
        if milli == GPU:
            space, units = GPU * count, count // devices
        else:
            parts = free[at:]
            space, units = sum(parts), sum([part // milli for part in parts]) // devices
        each = devices * milli
        for cores, weight in some:
            if cores > cpu:
                break
            fit = units if units * cores <= cpu else cpu // cores
            total += weight * (space + each * fit)
    return total


def _free(node: NodeState, milli: list[int]) -> tuple[int, ...]:
    """What is free of the devices that are not slices, sorted."""
    if node.profiles is not None:
        milli = [part for part, profile in zip(milli, node.profiles, strict=True) if not profile]
    return tuple(sorted(milli))


def _shape(task_class: TaskClass) -> Shape:
    milli = task_class.amount[0] // task_class.devices
    return (task_class.devices, milli, task_class.request.memory_mib, _rounded(task_class.cpu), task_class.mask)


def _rounded(cpu: int) -> int:
    """Up to a few binary digits, in quarters of a core, so that round numbers stay what they are."""
    quarters = -(-cpu // _QUARTER)
    digits = max(quarters.bit_length() - _CPU_BITS, 0)
    return (-(-quarters >> digits) << digits) * _QUARTER


def _digits(count: int) -> int:
    """Down to a power of two."""
    return 1 << count.bit_length() - 1 if count else 0


def _wants(shapes: list[tuple[Shape, int]], node: NodeState) -> list[Wants]:
    """What the shapes that may go to a node would take of its devices."""
    size = max(node.sizes, default=0)
    found: dict[tuple[int, int], dict[int, int]] = {}
    for (devices, milli, memory_mib, cpu, mask), weight in shapes:
        if not mask[node.id] or memory_mib > size:
            continue
        each = max(GPU * memory_mib // size, 1) if memory_mib else max(milli, 1)
        cores = found.setdefault((devices, each), {})
        cores[cpu] = cores.get(cpu, 0) + weight
    return [(*key, sorted(cores.items())) for key, cores in sorted(found.items())]
