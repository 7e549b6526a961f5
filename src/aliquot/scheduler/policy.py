"""Translates `SchedulingPolicy` objects into the planner's policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aliquot.api import SchedulingPolicy
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.planner import Policy


def policies_of(objects: Iterable[SchedulingPolicy]) -> tuple[Policy, Mapping[str, Policy]]:
    """The default policy, and the policies of the pools that a policy object names."""
    objects = list(objects)
    pools = {pool for policy in objects for pool in policy.spec.pools}
    return policy_of(_spec_for("", objects)), {pool: policy_of(_spec_for(pool, objects)) for pool in sorted(pools)}


def _spec_for(pool: str, objects: Iterable[SchedulingPolicy]) -> SchedulingPolicySpec:
    """The policy of a pool: the first by name that names the pool, otherwise the first that names no pool."""
    specs = [policy.spec for policy in sorted(objects, key=lambda policy: policy.metadata.name)]
    matching = [spec for spec in specs if pool in spec.pools] + [spec for spec in specs if not spec.pools]
    return matching[0] if matching else SchedulingPolicySpec()


def policy_of(spec: SchedulingPolicySpec) -> Policy:
    """Fields that are absent have the planner's defaults."""
    given: dict[str, Any] = {
        "steps": spec.steps or None,
        "spare": spec.spare,
        "gpu": spec.placement.gpu,
        "cpu": spec.placement.cpu,
        "device": spec.placement.device,
        "stale_grace": spec.stale_gang_grace,
        "terminating_grace": spec.terminating_grace,
        "usage_weight": spec.usage.weight,
        "victims": spec.victims,
        "share_unit": spec.share_unit,
        "saturation_multiplier": spec.saturation_multiplier,
        "department_first": spec.department_first,
        "restarts_per_hour": spec.restarts_per_hour,
    }
    policy = replace(Policy(), **{name: value for name, value in given.items() if value is not None})
    # An administrator writes -1 for no bound.
    if spec.disruption_bound is not None:
        policy = replace(policy, disruption_bound=None if spec.disruption_bound < 0 else spec.disruption_bound)
    if spec.hold_after is not None:
        policy = replace(policy, hold_after=None if spec.hold_after < 0 else spec.hold_after)
    return policy


@dataclass(frozen=True, slots=True)
class StopPolicy:
    """How workloads of a pool are stopped when they are preempted, where their spec does not say it."""

    grace: int | None = None  # None: the pod's own grace period
    ends: bool = False  # a training workload ends instead of returning to the queue


def stop_policy_of(pool: str, objects: Iterable[SchedulingPolicy]) -> StopPolicy:
    spec = _spec_for(pool, objects)
    return StopPolicy(spec.preemption_grace, bool(spec.terminate_after_preemption))
