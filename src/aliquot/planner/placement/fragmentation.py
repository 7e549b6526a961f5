"""The placement policy `least-fragments`: leave as little capacity as possible that no task can use.

The value of what is free on a node is what the tasks of this cluster could do with it. Every task of the snapshot,
running or pending, is a sample of future requests. Tasks with about the same request form one *shape*. For each shape
the value of a node has two parts, both in milli-GPU: the free parts of the devices on which one task of the shape fits,
and what as many tasks of it as fit at once, by devices and by cores, would use. A task goes to the node where it
reduces the value for the others least, and a fraction to the device for which that holds. Ties go to the node with
fewer free devices, then to the name.

Three properties give a shape more weight. The factors were measured on the traces in `tests/bench/openb`:

    scarce  it may use few of the devices, so these are left to it
    small   small fractions are what remainders can still be used for
    wide    several free devices on one node are hard to find

How often a shape occurs counts by powers of two. So weights, and all that was computed from them, stay the same while
jobs come and go. All numbers are integers: a plan does not depend on the order in which they were added.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import isqrt

from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import DeviceAlloc, FreeResources, NodeState
from aliquot.planner.placement.task_class import FRACTION, MIG, NO_GPU, TaskClass

POLICY = "least-fragments"
_BITS = 24  # of a key, for the node's number
_WHOLE_BITS = 16  # of a key, for a node's free devices
_WEIGHT_SCALE = 16  # the factors of a weight are integers in units of 1/16
# Cores that differ by less than an eighth are one shape: fewer shapes cost less time, and change less often.
_CPU_BITS = 4
_QUARTER_CORE = 250

# Free resources whose value is cached, at most; some dozens of MiB.
_CACHED_VALUES = 200_000

# Devices, milli, MiB, cores and node mask.
Shape = tuple[int, int, int, int, bytes]
# What the shapes with one number of devices and milli request: these, and (cores, weight) from few cores to many.
Demand = tuple[int, int, list[tuple[int, int]]]
# All that the value of a node depends on: its node class, free cores, and the free milli of its devices, sorted.
FreeKey = tuple[int, int, tuple[int, ...]]


class NodeOrder:
    """The nodes on which tasks with one request fit, best first. It is up to date with the first `changes_read` of
    the changes; -1 when it has to be built."""

    __slots__ = ("changes_read", "key_of", "keys", "losses")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.key_of: dict[int, int] = {}  # by node id
        self.changes_read = -1
        self.losses: dict[FreeKey, tuple[int, int]] = {}


class Fragments:
    def __init__(self, nodes: list[NodeState]) -> None:
        self._nodes = nodes
        self._shapes: dict[int, Shape] = {}  # by task class
        self._counts: dict[Shape, int] = {}  # tasks
        self._stale = True  # whether the weights, and all that was computed from them, are out of date
        self._orders: dict[int, NodeOrder] = {}  # by task class
        self._shared_orders: dict[
            object, NodeOrder
        ] = {}  # by request and mask: classes that differ in labels share one
        self._masks: list[bytes] | None = None  # of all shapes
        self._devices_in_mask: dict[bytes, int] = {}
        self._node_class: list[int] = []  # by node id; nodes of one class can be used by the same shapes
        self._examples: list[NodeState] = []  # one node of each class
        self._demands: list[list[Demand]] = []  # by node class
        self._values: dict[FreeKey, int] = {}
        self._changes: list[int] = []  # ids of the nodes that changed, in order
        self._devices = sum(len(node.sizes) for node in nodes)

    # ---------------------------------------------------------------- shapes and their weights

    def count(self, task_class: TaskClass, sign: int = 1) -> None:
        """Count one task of the snapshot; with sign -1 take it back."""
        # MIG slices are allocated whole, and CPU-only tasks leave no device unused.
        if task_class.form in (NO_GPU, MIG):
            return
        shape = self._shapes.get(task_class.id)
        if shape is None:
            shape = self._shapes[task_class.id] = _shape(task_class)
        before = self._counts.get(shape, 0)
        self._counts[shape] = before + sign
        if _power_of_two(before) != _power_of_two(before + sign):
            self._stale = True

    def update_weights(self) -> None:
        """Call this before a plan. What was computed stays valid as long as the weights do not change."""
        if self._stale or len(self._values) > _CACHED_VALUES:
            self._stale = False
            self._weigh()

    def _weigh(self) -> None:
        self._values = {}
        self.reset()
        shapes = [(shape, _power_of_two(count)) for shape, count in sorted(self._counts.items()) if count]
        masks = sorted({shape[4] for shape, _ in shapes})
        if masks != self._masks:
            self._masks = masks
            self._classify_nodes(masks)
        weighted = [(shape, self._factor(shape) * count) for shape, count in shapes]
        self._demands = [_demands(weighted, node) for node in self._examples]

    def _classify_nodes(self, masks: list[bytes]) -> None:
        self._node_class, self._examples = [], []
        classes: dict[object, int] = {}
        for node in self._nodes:
            key = (max(node.sizes, default=0), *(mask[node.id] for mask in masks))
            number = classes.get(key)
            if number is None:
                number = classes[key] = len(self._examples)
                self._examples.append(node)
            self._node_class.append(number)
        self._devices_in_mask = {mask: sum(len(node.sizes) for node in self._nodes if mask[node.id]) for mask in masks}

    def _factor(self, shape: Shape) -> int:
        devices, milli, _, _, mask = shape
        scarce = _WEIGHT_SCALE * self._devices // max(self._devices_in_mask[mask], 1)
        small = (8 * GPU // max(milli, 1)) ** 2
        wide = isqrt(devices * _WEIGHT_SCALE * _WEIGHT_SCALE)
        return scarce * small * wide

    # ---------------------------------------------------------------- the order of nodes

    def changed(self, node: NodeState) -> None:
        self._changes.append(node.id)

    def reset(self) -> None:
        """Forget all orders, since every node may have changed."""
        self._orders, self._shared_orders, self._changes = {}, {}, []

    def order(self, task_class: TaskClass) -> list[int]:
        """Keys of the nodes on which it fits after release, best first; the last bits are a node's number."""
        order = self._order(task_class)
        changes = self._changes
        if len(changes) > 8 * len(self._nodes) + 1000:  # too many to keep: all orders are built again
            for other in self._shared_orders.values():
                other.changes_read = -1
            changes.clear()
        if order.changes_read < 0:
            self._build(order, task_class)
        elif order.changes_read < len(changes):
            keys, key_of, nodes, mask = order.keys, order.key_of, self._nodes, task_class.mask
            for number in set(changes[order.changes_read :]):
                if not mask[number]:
                    continue
                node = nodes[number]
                old_key = key_of.pop(number, None)
                if old_key is not None:
                    del keys[bisect_left(keys, old_key)]
                if task_class.fits(node, node.after_release):
                    new_key = key_of[number] = self._key(task_class, node, order)
                    insort(keys, new_key)
        order.changes_read = len(changes)
        return order.keys

    def _order(self, task_class: TaskClass) -> NodeOrder:
        order = self._orders.get(task_class.id)
        if order is None:
            order = self._shared_orders.setdefault((task_class.request, task_class.mask), NodeOrder())
            self._orders[task_class.id] = order
        return order

    def _build(self, order: NodeOrder, task_class: TaskClass) -> None:
        order.key_of = {
            node.id: self._key(task_class, node, order)
            for node in self._nodes
            if task_class.mask[node.id] and task_class.fits(node, node.after_release)
        }
        order.keys = sorted(order.key_of.values())

    def key(self, task_class: TaskClass, node: NodeState) -> int:
        """The rank of a node on which it fits: smaller is better."""
        return self._key(task_class, node, self._order(task_class))

    def _key(self, task_class: TaskClass, node: NodeState, order: NodeOrder) -> int:
        free = node.after_release
        loss = self._loss(task_class, node, order)[0]
        if task_class.form == NO_GPU:  # nodes without devices first, then the node with the fewest cores left
            cores_left = min(max(free.cpu - task_class.cpu, 0), (1 << 40) - 1)
            return (bool(node.sizes) << 160 | loss << 40 | cores_left) << _BITS | node.id
        return (loss << _WHOLE_BITS | max(free.whole, 0)) << _BITS | node.id

    # ---------------------------------------------------------------- the value of what is free

    def _loss(self, task_class: TaskClass, node: NodeState, order: NodeOrder) -> tuple[int, int]:
        """The value that the node loses if it goes there; for a fraction of one device, also the free milli of the
        best device."""
        free = node.after_release
        key = (self._node_class[node.id], free.cpu, _free_milli(node, free.milli))
        loss = order.losses.get(key)
        if loss is None:
            loss = order.losses[key] = self._least_loss(task_class, node, key)
        return loss

    def _least_loss(self, task_class: TaskClass, node: NodeState, free_key: FreeKey) -> tuple[int, int]:
        node_class, cpu, free = free_key
        before, cpu = self._value(free_key), cpu - task_class.cpu
        if task_class.form == FRACTION and task_class.devices == 1:
            need = task_class.need(max(node.sizes))[0]
            best = None
            for position, milli in enumerate(free):
                if milli < need or (position and free[position - 1] == milli):
                    continue
                left = tuple(sorted((*free[:position], milli - need, *free[position + 1 :])))
                loss = before - self._value((node_class, cpu, left))
                if best is None or loss < best[0]:
                    best = (loss, milli)
            return best or (before, GPU)  # it fits on no device of the largest size, so any device will do
        after = list(node.after_release.milli)
        for device, milli, _ in task_class.find_devices(node, node.after_release) or ():
            after[device] -= milli
        return before - self._value((node_class, cpu, _free_milli(node, after))), 0

    def _value(self, key: FreeKey) -> int:
        value = self._values.get(key)
        if value is None:
            node_class, cpu, free = key
            value = self._values[key] = free_value(self._demands[node_class], cpu, free)
        return value

    def choose_devices(
        self, task_class: TaskClass, node: NodeState, other: FreeResources | None = None
    ) -> list[DeviceAlloc] | None:
        """The devices that a task gets on a node, after release. With `other` they must be free in that view too."""
        view = node.after_release
        if task_class.form != FRACTION or task_class.devices != 1:
            return task_class.find_devices(node, view, other=other)
        best_milli = self._loss(task_class, node, self._order(task_class))[1]
        best: tuple[int, int, DeviceAlloc] | None = None
        for alloc in task_class.fitting_devices(node, view, other):
            free = view.milli[alloc[0]]
            # The best device; where it does not fit in `other`, or is of another size, the fullest.
            key = (0 if free == best_milli else free, alloc[0], alloc)
            if best is None or key < best:
                best = key
        return None if best is None else [best[2]]


def free_value(demands: list[Demand], cpu: int, free: tuple[int, ...]) -> int:
    """What the shapes could use of a node with this much free CPU and these free milli of devices, sorted."""
    if not free or free[-1] <= 0:
        return 0
    total = 0
    for devices, milli, demand in demands:
        first = bisect_left(free, milli)
        count = len(free) - first
        if count < devices or demand[0][0] > cpu:
            continue
        if milli == GPU:
            usable, fitting = GPU * count, count // devices
        else:
            parts = free[first:]
            usable, fitting = sum(parts), sum([part // milli for part in parts]) // devices
        each = devices * milli
        for cores, weight in demand:
            if cores > cpu:
                break
            tasks = fitting if fitting * cores <= cpu else cpu // cores
            total += weight * (usable + each * tasks)
    return total


def _free_milli(node: NodeState, milli: list[int]) -> tuple[int, ...]:
    """The free milli of the devices that are not MIG slices, sorted."""
    if node.profiles is not None:
        milli = [part for part, profile in zip(milli, node.profiles, strict=True) if not profile]
    return tuple(sorted(milli))


def _shape(task_class: TaskClass) -> Shape:
    milli = task_class.amount[0] // task_class.devices
    return (task_class.devices, milli, task_class.request.memory_mib, _rounded_up(task_class.cpu), task_class.mask)


def _rounded_up(cpu: int) -> int:
    """Rounded up to a few binary digits, in quarters of a core, so that round numbers stay as they are."""
    quarters = -(-cpu // _QUARTER_CORE)
    digits = max(quarters.bit_length() - _CPU_BITS, 0)
    return (-(-quarters >> digits) << digits) * _QUARTER_CORE


def _power_of_two(count: int) -> int:
    """Rounded down to a power of two."""
    return 1 << count.bit_length() - 1 if count else 0


def _demands(shapes: list[tuple[Shape, int]], node: NodeState) -> list[Demand]:
    """What the shapes that may use a node would take of its devices."""
    size = max(node.sizes, default=0)
    by_devices: dict[tuple[int, int], dict[int, int]] = {}
    for (devices, milli, memory_mib, cpu, mask), weight in shapes:
        if not mask[node.id] or memory_mib > size:
            continue
        each = max(GPU * memory_mib // size, 1) if memory_mib else max(milli, 1)
        weights = by_devices.setdefault((devices, each), {})
        weights[cpu] = weights.get(cpu, 0) + weight
    return [(*key, sorted(weights.items())) for key, weights in sorted(by_devices.items())]
