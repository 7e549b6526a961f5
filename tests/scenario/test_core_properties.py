"""What holds of every plan for every cluster, and of where plans lead."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.core import plan
from worlds.checks import check, settle, shuffled
from worlds.clusters import Case, cases

_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def plans_are_sound(case: Case) -> None:
    check(case.snapshot, case.policy, plan(case.snapshot, case.policy, case.now))


def order_is_nothing(case: Case, chance: Random) -> None:
    one = plan(case.snapshot, case.policy, case.now)
    other = plan(shuffled(case.snapshot, chance), case.policy, case.now)
    assert one == other


def comes_to_rest(case: Case, lingering: bool) -> None:
    settle(case.snapshot, case.policy, case.now, lingering)


@settings(max_examples=100, **_QUIET)
@given(cases())
def test_plans_are_sound(case: Case) -> None:
    """Nothing is given out twice, nobody is stopped for nothing, gangs are whole, queues keep their bounds."""
    plans_are_sound(case)


@settings(max_examples=60, **_QUIET)
@given(cases(), st.randoms(use_true_random=False))
def test_order_is_nothing(case: Case, chance: Random) -> None:
    """The same cluster has the same plan, whatever the order in which it is told."""
    order_is_nothing(case, chance)


@settings(max_examples=80, **_QUIET)
@given(cases(), st.booleans())
def test_comes_to_rest(case: Case, lingering: bool) -> None:
    """Plan after plan, the cluster comes to rest, and every plan on the way is sound."""
    comes_to_rest(case, lingering)
