"""Queues and scheduling policies as the planner sees them."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.api import Department, NodePool, Project, SchedulingPolicy
from aliquot.api.scheduling_policy import PastUse
from aliquot.planner import Policy, Queue
from aliquot.scheduler.policy import StopPolicy, policies_of, stop_policy_of
from aliquot.scheduler.snapshot import queues_of
from aliquot.scheduler.usage_history import past_usage, refresh_seconds, usage_rule, with_past_usage
from aliquot.store.informer import Informer


class QueueCache:
    def __init__(
        self,
        projects: Informer[Project],
        departments: Informer[Department],
        pools: Informer[NodePool],
        policies: Informer[SchedulingPolicy],
    ) -> None:
        self._projects, self._departments, self._pools, self._policy_objects = projects, departments, pools, policies
        self._queues: tuple[Queue, ...] | None = None
        self._valid_until: float | None = None
        self._policies: tuple[Policy, Mapping[str, Policy]] | None = None
        self._usage_rule: PastUse | None = None

    def queues(self, now: float) -> tuple[Queue, ...]:
        """All queues. The same tuple as before when none changed and past usage is still recent enough."""
        if self._queues is None or (self._valid_until is not None and now >= self._valid_until):
            self._queues = self._build_queues(now)
        return self._queues

    @property
    def valid_until(self) -> float | None:
        """When past usage must be read again; None when it does not count."""
        return self._valid_until

    def policies(self) -> tuple[Policy, Mapping[str, Policy]]:
        """The default policy, and the policies of pools that have their own."""
        if self._policies is None:
            self._policies = policies_of(self._policy_objects)
            self._usage_rule = usage_rule(self._policy_objects)
        return self._policies

    def stop_policy(self, pool: str) -> StopPolicy:
        return stop_policy_of(pool, self._policy_objects)

    def invalidate_queues(self) -> None:
        self._queues = None

    def invalidate_policies(self) -> None:
        self._policies = None
        self._queues = None  # a policy decides whether past usage counts

    def _build_queues(self, now: float) -> tuple[Queue, ...]:
        self.policies()
        queues = queues_of(self._projects, self._departments)
        self._valid_until = None
        if self._usage_rule is not None:
            self._valid_until = now + refresh_seconds(self._usage_rule)
            queues = with_past_usage(queues, past_usage(self._projects, self._pools, self._usage_rule, now))
        return tuple(queues)
