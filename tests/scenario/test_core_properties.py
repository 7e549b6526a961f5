"""What holds of every plan for every cluster, and of where plans lead."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.core import plan
from worlds.checks import check, settle, shuffled
from worlds.clusters import Case, cases
from worlds.oracle import Oracle

_QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def plans_are_sound(case: Case) -> None:
    check(case.snapshot, case.policy, plan(case.snapshot, case.policy, case.now), case.now)


def order_is_nothing(case: Case, chance: Random) -> None:
    one = plan(case.snapshot, case.policy, case.now)
    other = plan(shuffled(case.snapshot, chance), case.policy, case.now)
    assert one == other


def comes_to_rest(case: Case, lingering: bool) -> None:
    settle(case.snapshot, case.policy, case.now, lingering)


def refusals_are_true(case: Case) -> None:
    rested = settle(case.snapshot, case.policy, case.now)
    decided = plan(rested, case.policy, case.now)
    for way in Oracle(rested, case.policy, decided.shares["default"], case.now).ways():
        raise AssertionError(way)


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


@settings(max_examples=80, **_QUIET)
@given(cases(tiny=True, newest=False))
def test_refusals_are_true(case: Case) -> None:
    """Where a job waits in a cluster at rest, a search through all that the rules allow finds no way either."""
    refusals_are_true(case)
