"""What holds of every plan for every cluster, and of where plans lead.

The quick tests look at the same few hundred clusters every time; `make soak` looks at other thousands each time.
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

_SOAK = {"sound": 6000, "order": 4000, "rest": 6000, "goes on": 5000, "fair": 3000, "shares": 2000, "refusals": 6000}
_QUICK = {"sound": 80, "order": 60, "rest": 80, "goes on": 80, "fair": 80, "shares": 60, "refusals": 80}


def not_overallocated(case: Case) -> None:
    check(case.snapshot, case.policy, plan(case.snapshot, case.policy, case.now), case.now)


def order(case: Case, chance: Random) -> None:
    decided = plan(case.snapshot, case.policy, case.now)
    assert plan(shuffled(case.snapshot, chance), case.policy, case.now) == decided


def rest(case: Case, lingering: bool) -> None:
    settle(case.snapshot, case.policy, case.now, lingering)


def refusals(case: Case, lingering: bool) -> None:
    rested = settle(case.snapshot, case.policy, case.now, lingering)
    shares = plan(rested, case.policy, case.now).fair_shares["default"]
    assert next(Oracle(rested, case.policy, shares, case.now).ways(), None) is None


def fair(case: Case) -> None:
    decided = plan(case.snapshot, case.policy, case.now)
    assert Oracle(case.snapshot, case.policy, decided.fair_shares["default"], case.now).unfair(decided) is None


def shares(case: Case) -> None:
    due = plan(case.snapshot, case.policy, case.now).fair_shares["default"]
    FairShareCheck(case.snapshot, case.policy, due).check()


def goes_on(case: Case, chance: Random) -> None:
    """Round after round, some jobs come and go, one session beside a plan that is made anew each time."""
    session = IncrementalPlanner()
    away: list[Job] = []
    now, snapshot = case.now, case.snapshot
    changed: dict[str, Job | None] | None = None
    for _ in range(6):
        decided = session.plan(snapshot, case.policy, now, changed=changed)
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
    "sound": (not_overallocated, (cases(),)),
    "order": (order, (cases(), st.randoms(use_true_random=False))),
    "rest": (rest, (cases(), st.booleans())),
    "goes on": (goes_on, (cases(), st.randoms(use_true_random=False))),
    "fair": (fair, (cases(tiny=True),)),
    "shares": (shares, (cases(tiny=True),)),
    # The order `newest` promises the peer's search, which gives up earlier.
    "refusals": (refusals, (cases(tiny=True, newest=False), st.booleans())),
}


def explore(name: str, count: int, again: bool) -> None:
    """`again`: the same clusters as last time."""
    proposition, strategies = PROPERTIES[name]
    wanted = settings(
        max_examples=count,
        derandomize=again,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    wanted(given(*strategies)(proposition))()


def test_plans_are_sound() -> None:
    """Nothing is given out twice, nobody is stopped for nothing, gangs are whole, queues keep their bounds."""
    explore("sound", _QUICK["sound"], again=True)


def test_order_is_nothing() -> None:
    """The same cluster has the same plan, whatever the order in which it is told."""
    explore("order", _QUICK["order"], again=True)


def test_comes_to_rest() -> None:
    """Plan after plan the cluster comes to rest, and every plan on the way is sound."""
    explore("rest", _QUICK["rest"], again=True)


def test_a_session_plans_alike() -> None:
    """A session that is told what changed gives the plan that is made from nothing."""
    explore("goes on", _QUICK["goes on"], again=True)


def test_takes_back_fairly() -> None:
    """Who takes back stays within its share, and takes only from those who hold more than they may keep."""
    explore("fair", _QUICK["fair"], again=True)


def test_shares_are_shared_out() -> None:
    """Everybody is due what its quota covers of what it asks for, and nothing is left while somebody may have more."""
    explore("shares", _QUICK["shares"], again=True)


def test_refusals_are_true() -> None:
    """Where a job waits in a cluster at rest, a search through all that the rules allow finds no way either: nothing
    usable is idle, and nobody below its share waits for what others hold above theirs."""
    explore("refusals", _QUICK["refusals"], again=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", PROPERTIES)
def test_for_long(name: str) -> None:
    """The same, for thousands of clusters."""
    explore(name, _SOAK[name], again=False)
