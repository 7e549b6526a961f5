"""Policies to replay with: by name, or a SchedulingPolicy document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.api import SchedulingPolicy, decode
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.errors import Fault, Invalid
from aliquot.scheduler.policy import policy_of
from aliquot.sim.replay.engine import ReplayPolicy

LADDER = "ladder"
# What each named policy changes of the defaults.
_NAMED: Mapping[str, Mapping[str, Any]] = {
    "binpack": {"placement": {"gpu": "binpack"}},
    "spread": {"placement": {"gpu": "spread"}},
    "least-fragments": {"placement": {"gpu": "least-fragments"}},
    "newest": {"victims": "newest"},
    "no-hold": {"holdAfter": -1},
    "no-preemption": {"steps": ["allocate"]},
    LADDER: {"holdAfter": -1},  # a waiting job preempts jobs of lower priority instead
}
NAMES = tuple(_NAMED)


def named_policy(name: str, ladder: tuple[float, ...]) -> ReplayPolicy:
    spec = decode(SchedulingPolicySpec, _NAMED[name], strict=True, what=f"policy {name}")
    return ReplayPolicy(name, policy_of(spec), ladder if name == LADDER else ())


def policy_from_document(data: Any, source: str) -> ReplayPolicy:
    """A SchedulingPolicy, as `aliquot apply` takes it."""
    if not isinstance(data, Mapping) or data.get("kind") != "SchedulingPolicy":
        raise Invalid.because(source, [Fault("kind", "must be SchedulingPolicy")])
    policy = decode(SchedulingPolicy, data, strict=True, what=source)
    if policy.spec.usage.weight:
        fault = Fault("spec.usage.weight", "past use is not followed in a replay; take it out")
        raise Invalid.because(source, [fault])
    return ReplayPolicy(policy.metadata.name or source, policy_of(policy.spec))
