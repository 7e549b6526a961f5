"""Policies to compare: by name, or as administrators write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.api import SchedulingPolicy, decode
from aliquot.api.scheduling_policy import SchedulingPolicySpec
from aliquot.errors import Fault, Invalid
from aliquot.scheduler.policy import policy_of
from aliquot.sim.replay.engine import Contender

LADDER = "ladder"
# What each name changes of the defaults.
_NAMED: Mapping[str, Mapping[str, Any]] = {
    "binpack": {"placement": {"gpu": "binpack"}},
    "spread": {"placement": {"gpu": "spread"}},
    "least-fragments": {"placement": {"gpu": "least-fragments"}},
    "newest": {"victims": "newest"},
    "no-hold": {"holdAfter": -1},
    "no-preemption": {"steps": ["allocate"]},
    LADDER: {"holdAfter": -1},  # who waits takes room from those below it instead
}
NAMES = tuple(_NAMED)


def named(name: str, ladder: tuple[float, ...]) -> Contender:
    spec = decode(SchedulingPolicySpec, _NAMED[name], strict=True, what=f"policy {name}")
    return Contender(name, policy_of(spec), ladder if name == LADDER else ())


def from_document(data: Any, source: str) -> Contender:
    """A SchedulingPolicy, as `aliquot apply` takes it."""
    if not isinstance(data, Mapping) or data.get("kind") != "SchedulingPolicy":
        raise Invalid.because(source, [Fault("kind", "must be SchedulingPolicy")])
    found = decode(SchedulingPolicy, data, strict=True, what=source)
    if found.spec.usage.weight:
        fault = Fault("spec.usage.weight", "past use is not followed in a replay; take it out")
        raise Invalid.because(source, [fault])
    return Contender(found.metadata.name or source, policy_of(found.spec))
