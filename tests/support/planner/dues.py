"""What is true of fair shares, however they are worked out: nobody gets more than it asks for or less than its quota
covers, and nothing is left over while somebody may have more."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.planner.model import Amount, Policy, Queue, Snapshot, TaskState, mig_slice_count
from support.planner.ground import POOL, Ground


class Dues:
    """A snapshot with one node pool, and the shares that a plan gives its queues."""

    def __init__(self, snapshot: Snapshot, policy: Policy, shares: Mapping[str, Amount]) -> None:
        self.policy = policy
        self.shares = shares
        self.ground = Ground(snapshot)
        self.children: dict[str, list[Queue]] = {}
        for queue in snapshot.queues:
            self.children.setdefault(queue.parent, []).append(queue)
        self.asked = {name: list(used) for name, used in self.ground.used.items() if name not in self.children}
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.PENDING:
                    amount = self.ground.waiting_amount(job, task)
                    for r in range(3):
                        self.asked[job.queue][r] += amount[r]

    def check(self) -> None:
        for resource in range(3):
            self._divided("", self._total(resource), resource)

    def _total(self, r: int) -> int:
        total = 0
        for node in self.ground.nodes.values():
            if node.ready and node.pool == POOL:
                slices = [mig_slice_count(one.profile) if one.profile else 1 for one in node.devices if one.healthy]
                total += (1000 * sum(slices), node.cpu, node.memory)[r] - node.foreign[r]
        return total

    def wanted(self, queue: Queue, r: int) -> int:
        """What it holds and waits for, no more than it may ever hold."""
        below = self.children.get(queue.name)
        asked = sum(self.wanted(child, r) for child in below) if below else self.asked[queue.name][r]
        terms = queue.pool_quota(POOL)
        bounds = [terms.limit[r], None if terms.over_quota else terms.quota[r]]
        return min([asked, *(bound for bound in bounds if bound is not None)])

    def _divided(self, parent: str, total: int, r: int) -> None:
        queues = self.children.get(parent, [])
        spare = total
        for queue in queues:
            share, wanted, quota = self.shares[queue.name][r], self.wanted(queue, r), queue.pool_quota(POOL).quota[r]
            # In whole units the last one given out may be more than what is left to ask for.
            unit = 1000 if self.policy.share_unit == "whole" and r == 0 else 1
            assert share < wanted + unit, f"{queue.name} is due {share} and asks for {wanted}"
            assert share >= min(total if quota is None else quota, wanted), f"{queue.name} is due less than its quota"
            spare -= share
        hungry = [one for one in queues if self.shares[one.name][r] < self.wanted(one, r) and self._borrows(one, r)]
        assert spare <= 0 or not hungry, f"{spare} are left over and {hungry[0].name} wants more"
        for queue in queues:
            self._divided(queue.name, self.shares[queue.name][r], r)

    def _borrows(self, queue: Queue, r: int) -> bool:
        terms = queue.pool_quota(POOL)
        return terms.over_quota and terms.weight[r] > 0
