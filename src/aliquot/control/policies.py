"""From scheduling policies as administrators write them to the scheduler's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aliquot.core import Policy
from aliquot.types import SchedulingPolicy
from aliquot.types.pools import SchedulingPolicySpec


def policies_of(objects: Iterable[SchedulingPolicy]) -> tuple[Policy, Mapping[str, Policy]]:
    """The one for pools that none names, and those by pool. Where several name a pool (or none), the first by name."""
    general: Policy | None = None
    by_pool: dict[str, Policy] = {}
    for one in sorted(objects, key=lambda one: one.metadata.name):
        policy = policy_of(one.spec)
        if not one.spec.pools:
            general = general or policy
        for pool in one.spec.pools:
            by_pool.setdefault(pool, policy)
    return general or Policy(), by_pool


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
    }
    policy = replace(Policy(), **{name: value for name, value in given.items() if value is not None})
    bound = spec.disruption_bound
    return policy if bound is None else replace(policy, disruption_bound=None if bound < 0 else bound)
