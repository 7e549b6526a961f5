"""What was held over time: exact where it matters, small however long it is."""

from __future__ import annotations

import random

import pytest

from aliquot.api import Amounts, Metadata, NodePool, Project, SchedulingPolicy
from aliquot.api.node_pool import NodePoolStatus
from aliquot.api.project import ProjectStatus
from aliquot.api.scheduling_policy import PastUse, SchedulingPolicySpec
from aliquot.planner import Queue
from aliquot.scheduler.usage_history import (
    DEFAULT_WINDOW,
    KEPT_SECONDS,
    extend_history,
    parse_history,
    past_usage,
    usage_rule,
    weighted_usage,
    with_past_usage,
)

HOUR = 3600.0
START = 1_800_000_000.0
GPUS_4 = Amounts(gpu=4000, cpu=0, memory=0)
NOTHING = Amounts()


def told(*held: tuple[float, int]) -> str:
    """The history of somebody who held so many GPUs for so many hours, one after the other."""
    text, now = extend_history("", NOTHING, START), START
    for hours, gpus in held:
        now += hours * HOUR
        text = extend_history(text, Amounts(gpu=gpus * 1000), now)
    return text


def gpu_hours(text: str, held: Amounts, now: float, since: float = START, half_life: float | None = None) -> float:
    return weighted_usage(text, held, now, since, half_life)[0] / 1000 / HOUR


def test_what_is_held_now_counts_since_the_last_entry() -> None:
    """Nothing is written while nothing changes, and yet time counts."""
    text = told((1, 2))
    assert gpu_hours(text, GPUS_4, START + 3 * HOUR) == pytest.approx(2 + 8)


def test_a_window_cuts() -> None:
    """Only what lies in it counts, also in the middle of a stretch."""
    text = told((2, 8), (2, 1))
    now = START + 4 * HOUR
    assert gpu_hours(text, NOTHING, now, since=START + HOUR) == pytest.approx(8 + 2)
    assert gpu_hours(text, NOTHING, now, since=START + 3 * HOUR) == pytest.approx(1)
    assert gpu_hours(text, NOTHING, now, since=now) == 0


def test_half_life() -> None:
    """What was held one half-life ago counts half, two of them ago a quarter; exactly, also for one long stretch."""
    moment = 1 / HOUR
    text = told((moment, 8), (2, 0))
    assert gpu_hours(text, NOTHING, START + 2 * HOUR, half_life=HOUR) == pytest.approx(8 * moment / 4, rel=1e-3)
    # For ever at 1 GPU: the sum of all halves is h / ln 2.
    long = told((1000, 1))
    now = START + 1000 * HOUR
    assert gpu_hours(long, NOTHING, now, since=0, half_life=HOUR) == pytest.approx(1 / 0.693147, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_stays_small_and_right(seed: int) -> None:
    """Five weeks of changes every few minutes: a few hundred entries, nothing lost, and each window within a
    sixteenth of its length."""
    chance = random.Random(seed)
    text, now, held = extend_history("", NOTHING, START), START, 0
    truth: list[tuple[float, float, int]] = []
    while now < START + KEPT_SECONDS:
        seconds = chance.choice((0.1, 30.0, 600.0, 7200.0))
        truth.append((now, now + seconds, held))
        now += seconds
        text, held = extend_history(text, Amounts(gpu=held), now), chance.choice((0, 500, 8000))
    assert len(parse_history(text)) < 400
    for window in (600.0, HOUR, 86_400.0, DEFAULT_WINDOW):
        since = now - window
        exact = sum(milli * max(0.0, end - max(begin, since)) for begin, end, milli in truth)
        assert weighted_usage(text, NOTHING, now, since, None)[0] == pytest.approx(exact, abs=8000 * window / 16 + 1)
    total = sum(milli * (end - begin) for begin, end, milli in truth)
    assert sum(one.gpu for one in parse_history(text)) == pytest.approx(total, rel=1e-3)


def test_old_use_is_forgotten() -> None:
    """Beyond five weeks nothing is kept."""
    text = told((1, 8), (KEPT_SECONDS / HOUR + 1, 0), (1, 1))
    assert gpu_hours(text, NOTHING, START + KEPT_SECONDS * 2, since=0) == pytest.approx(1)


def test_a_clock_that_was_put_back() -> None:
    """Time that already counted does not count again."""
    text = told((2, 1))
    assert extend_history(text, GPUS_4, START + HOUR) == text


@pytest.mark.parametrize("text", ["nonsense", "1:2:3", "1:a:2:3"])
def test_what_cannot_be_read_is_as_if_it_were_not_there(text: str) -> None:
    """It begins anew, and nobody fails."""
    assert weighted_usage(text, GPUS_4, START, 0, None) == (0, 0, 0)
    assert len(parse_history(extend_history(text, GPUS_4, START))) == 1


def _project(name: str, *held: tuple[float, int], now: int = 0) -> Project:
    return Project(
        metadata=Metadata(name=name), status=ProjectStatus(history=told(*held), allocated=Amounts(gpu=now * 1000))
    )


def _pool(gpus: int) -> NodePool:
    total = Amounts(gpu=gpus * 1000)
    return NodePool(
        metadata=Metadata(name="default"),
        status=NodePoolStatus(total=total, history=extend_history("", NOTHING, START)),
    )


def test_use_is_a_part_of_all_there_was() -> None:
    """24 GPU-hours of 100 possible ones are 0.24 (SCH-55); who used nothing is not named."""
    projects = [_project("a", (6, 4), (4, 0)), _project("b", (10, 0))]
    found = past_usage(projects, [_pool(10)], PastUse(weight=1), START + 10 * HOUR)
    assert found.keys() == {"a"}
    assert found["a"][0] == pytest.approx(0.24)


def test_tumbling_windows_start_anew() -> None:
    """At the turn of a window past use is nothing."""
    rule = PastUse(weight=1, window=int(10 * HOUR), window_type="tumbling")
    turn = (START + 10 * HOUR) // (10 * HOUR) * 10 * HOUR
    project = _project("a", ((turn - START) / HOUR, 4))
    assert past_usage([project], [_pool(10)], rule, turn) == {}
    assert past_usage([project], [_pool(10)], rule, turn - 1)["a"][0] == pytest.approx(0.4, abs=0.01)


def test_a_department_used_what_its_projects_used() -> None:
    """Sums go up the tree."""
    queues = [Queue("a", "department/d"), Queue("b", "department/d"), Queue("c"), Queue("department/d")]
    made = {queue.name: queue.usage[0] for queue in with_past_usage(queues, {"a": (0.25, 0, 0), "b": (0.5, 0, 0)})}
    assert made == {"a": 0.25, "b": 0.5, "c": 0, "department/d": 0.75}


def test_the_first_policy_that_looks_back_says_how() -> None:
    """By name; those without a weight do not count."""

    def policy(name: str, weight: float) -> SchedulingPolicy:
        return SchedulingPolicy(
            metadata=Metadata(name=name), spec=SchedulingPolicySpec(usage=PastUse(weight=weight, window=60))
        )

    assert usage_rule([policy("c", 3), policy("b", 2), policy("a", 0)]) == PastUse(weight=2, window=60)
    assert usage_rule([policy("a", 0)]) is None
