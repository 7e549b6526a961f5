"""Properties of the plans for random clusters, and of the states that plans lead to.

The quick tests use the same few hundred clusters every time. `make soak` uses thousands of new ones each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.planner import Job, plan
from aliquot.planner.incremental import IncrementalPlanner, changes
from support.planner.checks import after, check, settle, shuffled
from support.planner.clusters import Case, cases
from support.planner.fair_shares import FairShareCheck
from support.planner.oracle import Oracle

_SOAK = {
    "valid": 6000,
    "order": 4000,
    "settles": 6000,
    "incremental": 5000,
    "fair": 3000,
    "shares": 2000,
    "refusals": 6000,
}
_QUICK = {"valid": 80, "order": 60, "settles": 80, "incremental": 80, "fair": 80, "shares": 60, "refusals": 80}


def valid(case: Case) -> None:
    check(case.snapshot, case.policy, plan(case.snapshot, case.policy, case.now), case.now)


def order(case: Case, chance: Random) -> None:
    decided = plan(case.snapshot, case.policy, case.now)
    assert plan(shuffled(case.snapshot, chance), case.policy, case.now) == decided


def settles(case: Case, lingering: bool) -> None:
    settle(case.snapshot, case.policy, case.now, lingering)


def refusals(case: Case, lingering: bool) -> None:
    settled = settle(case.snapshot, case.policy, case.now, lingering)
    shares = plan(settled, case.policy, case.now).fair_shares["default"]
    assert next(Oracle(settled, case.policy, shares, case.now).ways(), None) is None


def fair(case: Case) -> None:
    decided = plan(case.snapshot, case.policy, case.now)
    assert Oracle(case.snapshot, case.policy, decided.fair_shares["default"], case.now).unfair(decided) is None


def shares(case: Case) -> None:
    fair_shares = plan(case.snapshot, case.policy, case.now).fair_shares["default"]
    FairShareCheck(case.snapshot, case.policy, fair_shares).check()


def incremental(case: Case, chance: Random) -> None:
    """Over several rounds, jobs come and go, and an incremental planner is compared with planning from scratch."""
    planner = IncrementalPlanner()
    away: list[Job] = []
    now, snapshot = case.now, case.snapshot
    changed: dict[str, Job | None] | None = None
    for _ in range(6):
        decided = planner.plan(snapshot, case.policy, now, changed=changed)
        assert decided == plan(snapshot, case.policy, now)
        now += chance.choice((0, 10, 1000))
        following = after(snapshot, decided, lingering=chance.random() < 0.5, now=now)
        jobs = list(following.jobs)
        chance.shuffle(jobs)
        back = [away.pop()] if away and chance.random() < 0.5 else []
        if jobs and chance.random() < 0.7:
            away.append(jobs.pop())
        following = replace(following, jobs=(*jobs, *back), nodes=snapshot.nodes, queues=snapshot.queues)
        changed = changes(snapshot, following)
        snapshot = following


PROPERTIES: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "valid": (valid, (cases(),)),
    "order": (order, (cases(), st.randoms(use_true_random=False))),
    "settles": (settles, (cases(), st.booleans())),
    "incremental": (incremental, (cases(), st.randoms(use_true_random=False))),
    "fair": (fair, (cases(tiny=True),)),
    "shares": (shares, (cases(tiny=True),)),
    # With `newest` the search is that of the peer, which gives up earlier.
    "refusals": (refusals, (cases(tiny=True, newest=False), st.booleans())),
}


def explore(name: str, count: int, again: bool) -> None:
    """`again`: use the same clusters every time."""
    check_property, strategies = PROPERTIES[name]
    wanted = settings(
        max_examples=count,
        derandomize=again,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    wanted(given(*strategies)(check_property))()


def test_plans_are_valid() -> None:
    """Nothing is allocated twice, no task is evicted in vain, gangs are whole, queues stay within their bounds."""
    explore("valid", _QUICK["valid"], again=True)


def test_order_of_the_snapshot_is_irrelevant() -> None:
    """The same cluster has the same plan, whatever the order of its parts."""
    explore("order", _QUICK["order"], again=True)


def test_plans_settle() -> None:
    """After a few plans nothing changes any more, and every plan on the way is valid."""
    explore("settles", _QUICK["settles"], again=True)


def test_incremental_plans_equal_plans_from_scratch() -> None:
    """An incremental planner that gets the changes returns the plan that planning from scratch returns."""
    explore("incremental", _QUICK["incremental"], again=True)


def test_reclaims_are_fair() -> None:
    """A queue that reclaims stays within its fair share, and takes only what other queues may not keep."""
    explore("fair", _QUICK["fair"], again=True)


def test_fair_shares() -> None:
    """A queue gets what its quota covers of what it wants, and nothing is left over while a queue may have more."""
    explore("shares", _QUICK["shares"], again=True)


def test_refusals_are_true() -> None:
    """Where a job waits in a settled cluster, an exhaustive search finds no way to run it either: nothing usable is
    idle, and no queue below its fair share waits for what others use above theirs."""
    explore("refusals", _QUICK["refusals"], again=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", PROPERTIES)
def test_soak(name: str) -> None:
    """The same for thousands of clusters."""
    explore(name, _SOAK[name], again=False)
