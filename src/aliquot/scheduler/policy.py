"""From scheduling policies as administrators write them to the scheduler's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aliquot.api import SchedulingPolicy
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.planner import Policy


def policies_of(objects: Iterable[SchedulingPolicy]) -> tuple[Policy, Mapping[str, Policy]]:
    """The one for pools that none names, and those by pool."""
    objects = list(objects)
    named = {pool for one in objects for pool in one.spec.pools}
    return policy_of(_spec_for("", objects)), {pool: policy_of(_spec_for(pool, objects)) for pool in sorted(named)}


def _spec_for(pool: str, objects: Iterable[SchedulingPolicy]) -> SchedulingPolicySpec:
    """What holds for a pool: the first by name that names it, else the first that names none."""
    specs = [one.spec for one in sorted(objects, key=lambda one: one.metadata.name)]
    fitting = [spec for spec in specs if pool in spec.pools] + [spec for spec in specs if not spec.pools]
    return fitting[0] if fitting else SchedulingPolicySpec()


def policy_of(spec: SchedulingPolicySpec) -> Policy:
    """What is absent has the scheduler's default."""
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
    # -1 is how an absent bound is written.
    if spec.disruption_bound is not None:
        policy = replace(policy, disruption_bound=None if spec.disruption_bound < 0 else spec.disruption_bound)
    if spec.hold_after is not None:
        policy = replace(policy, hold_after=None if spec.hold_after < 0 else spec.hold_after)
    return policy


@dataclass(frozen=True, slots=True)
class StopPolicy:
    """How workloads of a pool are stopped for others, where they do not say themselves."""

    grace: int | None = None  # None: as long as the pod has
    ends: bool = False  # training ends instead of going back to the queue


def stop_policy_of(pool: str, objects: Iterable[SchedulingPolicy]) -> StopPolicy:
    spec = _spec_for(pool, objects)
    return StopPolicy(spec.preemption_grace, bool(spec.terminate_after_preemption))
