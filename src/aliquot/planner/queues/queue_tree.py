"""The tree of queues in one node pool: what each queue may hold, what it holds, and its order key.

Usage is added at a leaf and counted at every queue above it, so that a department's usage is as cheap to read as a
project's. An order key sorts queues, smallest first, ties by age and name. The same key is used forwards to start jobs
and backwards to find victims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aliquot.planner.model import GPU, NOTHING, Amount, Bound, Policy, PoolQuota, Queue
from aliquot.planner.queues.fair_share import Demand, divide

OrderKey = tuple[bool, bool, int, bool, float, float, tuple[float, ...], float, str]


class QueueState:
    """One queue in one pool.

    `used` is all it holds, `nonpreemptible` the part of it held by nonpreemptible jobs, `pending` what its waiting jobs
    ask for. `QueueTree.compute_shares` sets `demand`, `share`, `allowance` and `denominators`."""

    __slots__ = (
        "allowance",
        "children",
        "created",
        "demand",
        "denominators",
        "limit",
        "name",
        "nonpreemptible",
        "over_quota",
        "parent",
        "path",
        "pending",
        "preempt_min",
        "priority",
        "quota",
        "reclaim_min",
        "share",
        "source",
        "used",
        "weight",
    )

    def __init__(self, source: Queue, bounds: PoolQuota, parent: QueueState | None) -> None:
        self.source = source
        self.name = source.name
        self.parent = parent
        self.children: list[QueueState] = []
        self.path: tuple[QueueState, ...] = (self, *parent.path) if parent else (self,)  # itself first, its root last
        self.quota: Bound = bounds.quota
        self.limit: Bound = bounds.limit
        self.weight = bounds.weight if bounds.over_quota else (0, 0, 0)
        self.over_quota = bounds.over_quota
        self.priority = bounds.priority
        self.created = source.created
        inherited = (parent.reclaim_min, parent.preempt_min) if parent else (0.0, 0.0)
        self.reclaim_min: float = inherited[0] if source.reclaim_min_runtime is None else source.reclaim_min_runtime
        self.preempt_min: float = inherited[1] if source.preempt_min_runtime is None else source.preempt_min_runtime
        self.used = [0, 0, 0]
        self.nonpreemptible = [0, 0, 0]
        self.pending = [0, 0, 0]
        self.demand = [0, 0, 0]
        self.share: Amount = NOTHING
        self.allowance: Bound = (0, 0, 0)
        self.denominators: Amount = NOTHING

    @property
    def display_name(self) -> str:
        """Its name for users, without the prefix that tells a department from a project of the same name."""
        return self.name.rpartition("/")[2]

    def add_usage(self, amount: Amount, nonpreemptible: bool, sign: int = 1) -> None:
        """Adds an amount here and to every queue above; with sign -1 subtracts it."""
        gpu, cpu, memory = amount
        if sign < 0:
            gpu, cpu, memory = -gpu, -cpu, -memory
        for queue in self.path:
            used = queue.used
            used[0] += gpu
            used[1] += cpu
            used[2] += memory
            if nonpreemptible:
                used = queue.nonpreemptible
                used[0] += gpu
                used[1] += cpu
                used[2] += memory

    def ceiling(self, resource: int) -> int | None:
        """The most it may ever hold: its limit, and its quota where it may not borrow."""
        limit, quota = self.limit[resource], self.quota[resource]
        if self.over_quota or quota is None:
            return limit
        return quota if limit is None else min(limit, quota)

    def order_key(self, asked: Amount) -> OrderKey:
        """Its sort key if its next job asks for this much; the smallest key comes first."""
        used, share, quota = self.used, self.share, self.quota
        gpu, cpu, memory = used[0] + asked[0], used[1] + asked[1], used[2] + asked[2]
        over_share = used[0] > share[0] and used[1] > share[1] and used[2] > share[2]
        over_quota = (
            (quota[0] is not None and gpu > quota[0])
            or (quota[1] is not None and cpu > quota[1])
            or (quota[2] is not None and memory > quota[2])
        )
        scale = self.denominators
        without_allowance = (gpu > 0 and not scale[0]) or (cpu > 0 and not scale[1]) or (memory > 0 and not scale[2])
        return (
            over_share,
            over_quota,
            -self.priority,
            without_allowance,
            _dominant_share(gpu, cpu, memory, scale),
            _dominant_share(used[0], used[1], used[2], scale),
            scale,
            self.created,
            self.name,
        )

    def dominant_share(self, gpu: int, cpu: int, memory: int) -> float:
        """Its dominant share if it held this much: the largest ratio, over all resources, to its allowance."""
        return _dominant_share(gpu, cpu, memory, self.denominators)

    def saturation(self, without: Sequence[int] | None = None) -> float:
        """Its dominant share now, less an amount. What is above 1 can be reclaimed."""
        gpu, cpu, memory = without or (0, 0, 0)
        return _dominant_share(self.used[0] - gpu, self.used[1] - cpu, self.used[2] - memory, self.denominators)


def _dominant_share(gpu: int, cpu: int, memory: int, scale: Amount) -> float:
    """The largest ratio to a denominator. Where that is zero, every unit counts heavily."""
    a = gpu / scale[0] if scale[0] else gpu * 1000.0
    b = cpu / scale[1] if scale[1] else cpu * 1000.0
    c = memory / scale[2] if scale[2] else memory * 1000.0
    if a >= b:
        return a if a >= c else c
    return b if b >= c else c


class QueueTree:
    """All queues of a pool."""

    __slots__ = ("leaves", "queues", "roots", "total")

    def __init__(self, queues: Iterable[Queue], pool: str) -> None:
        sources = {queue.name: queue for queue in queues}
        self.queues: dict[str, QueueState] = {}
        self.total: Amount = NOTHING
        for name in sorted(sources):
            self._add(sources[name], sources, pool, ())
        self.roots = [queue for queue in self.queues.values() if queue.parent is None]
        self.leaves = [queue for queue in self.queues.values() if not queue.children]

    def _add(self, source: Queue, sources: Mapping[str, Queue], pool: str, below: tuple[str, ...]) -> QueueState | None:
        """None for a queue whose parent does not exist, or that is its own ancestor: it is left out, with all queues
        below it."""
        if source.name in self.queues:
            return self.queues[source.name]
        parent = None
        if source.parent:
            above = sources.get(source.parent)
            if above is None or source.parent in (source.name, *below):
                return None
            parent = self._add(above, sources, pool, (source.name, *below))
            if parent is None:
                return None
        state = QueueState(source, source.pool_quota(pool), parent)
        self.queues[source.name] = state
        if parent:
            parent.children.append(state)
        return state

    def compute_shares(self, total: Amount, policy: Policy) -> None:
        """Computes shares from what leaves hold (`used`) and wait for (`pending`)."""
        self.total = total
        for leaf in self.leaves:
            leaf.demand = [used + pending for used, pending in zip(leaf.used, leaf.pending, strict=True)]
        self._sum_demand(self.roots)
        top = self.roots if policy.department_first else self.leaves
        shares: dict[str, list[int]] = {}
        for resource in range(3):
            self._divide(total[resource], top, resource, policy, shares)
        for queue in self.queues.values():
            share = shares.get(queue.name) or [
                sum(shares[leaf.name][r] for leaf in _leaves_below(queue)) for r in range(3)
            ]
            queue.share = (share[0], share[1], share[2])
            queue.allowance = _allowance(queue)
            denominators = [total[r] if bound is None else bound for r, bound in enumerate(queue.allowance)]
            queue.denominators = (denominators[0], denominators[1], denominators[2])

    def _sum_demand(self, queues: list[QueueState]) -> None:
        """Sums demand upwards. No queue demands more than it may ever hold."""
        for queue in queues:
            if queue.children:
                self._sum_demand(queue.children)
                queue.demand = [sum(child.demand[r] for child in queue.children) for r in range(3)]
            for r in range(3):
                ceiling = queue.ceiling(r)
                if ceiling is not None:
                    queue.demand[r] = min(queue.demand[r], ceiling)

    def _divide(
        self, total: int, queues: list[QueueState], resource: int, policy: Policy, shares: dict[str, list[int]]
    ) -> None:
        demands = _demands(queues, resource, policy.spare == "quota")
        unit = GPU if policy.share_unit == "whole" and resource == 0 else 1
        for queue, share in zip(queues, divide(total, demands, unit, policy.usage_weight), strict=True):
            shares.setdefault(queue.name, [0, 0, 0])[resource] = share
            if queue.children:
                self._divide(share, queue.children, resource, policy, shares)


def _demands(queues: list[QueueState], resource: int, by_quota: bool) -> list[Demand]:
    demands = []
    for queue in queues:
        quota, weight = queue.quota[resource], queue.weight[resource]
        # By quota, queues without quota come last, with equal weights. With no share at all the first to ask gets all.
        last = by_quota and not quota
        if by_quota and weight:
            weight = quota or 1
        demands.append(
            Demand(
                queue.name,
                quota,
                queue.demand[resource],
                weight,
                queue.priority,
                queue.source.usage[resource],
                queue.created,
                last,
            )
        )
    return demands


def _allowance(queue: QueueState) -> Bound:
    """What cannot be reclaimed: its limit if its quota is unlimited, else the larger of quota and share."""
    bounds: list[int | None] = []
    for quota, limit, share in zip(queue.quota, queue.limit, queue.share, strict=True):
        if quota is None:
            bounds.append(limit)
        else:
            keep = max(quota, share)
            bounds.append(keep if limit is None else min(limit, keep))
    return (bounds[0], bounds[1], bounds[2])


def _leaves_below(queue: QueueState) -> list[QueueState]:
    if not queue.children:
        return [queue]
    return [leaf for child in queue.children for leaf in _leaves_below(child)]
