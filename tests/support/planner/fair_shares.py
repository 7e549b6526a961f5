"""Invariants of fair shares: no queue gets more than it wants, or less than its quota covers of that, and nothing is
left over while a queue may have more."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.planner.model import Amount, Policy, Queue, Snapshot, TaskState, mig_slice_count
from support.planner.reference import POOL, ReferenceState


class FairShareCheck:
    """Checks the fair shares of a plan for a snapshot with one node pool."""

    def __init__(self, snapshot: Snapshot, policy: Policy, shares: Mapping[str, Amount]) -> None:
        self.policy = policy
        self.shares = shares
        self.reference = ReferenceState(snapshot)
        self.children: dict[str, list[Queue]] = {}
        for queue in snapshot.queues:
            self.children.setdefault(queue.parent, []).append(queue)
        self.asked = {name: list(used) for name, used in self.reference.used.items() if name not in self.children}
        for job in snapshot.jobs:
            for task in job.tasks:
                if task.state is TaskState.PENDING:
                    amount = self.reference.pending_amount(job, task)
                    for r in range(3):
                        self.asked[job.queue][r] += amount[r]

    def check(self) -> None:
        for resource in range(3):
            self._divided("", self._total(resource), resource)

    def _total(self, r: int) -> int:
        total = 0
        for node in self.reference.nodes.values():
            if node.ready and node.pool == POOL:
                slices = [
                    mig_slice_count(device.profile) if device.profile else 1
                    for device in node.devices
                    if device.healthy
                ]
                total += (1000 * sum(slices), node.cpu, node.memory)[r] - node.foreign[r]
        return total

    def wanted(self, queue: Queue, r: int) -> int:
        """What the queue uses and waits for, bounded by what it may ever use."""
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
            # In whole units the last unit may be more than what the queue still wants.
            unit = 1000 if self.policy.share_unit == "whole" and r == 0 else 1
            assert share < wanted + unit, f"{queue.name} has a share of {share} and wants {wanted}"
            assert share >= min(total if quota is None else quota, wanted), f"{queue.name} has a share below its quota"
            spare -= share
        short = [
            queue for queue in queues if self.shares[queue.name][r] < self.wanted(queue, r) and self._borrows(queue, r)
        ]
        assert spare <= 0 or not short, f"{spare} are left over and {short[0].name} wants more"
        for queue in queues:
            self._divided(queue.name, self.shares[queue.name][r], r)

    def _borrows(self, queue: Queue, r: int) -> bool:
        terms = queue.pool_quota(POOL)
        return terms.over_quota and terms.weight[r] > 0
