"""The usage history: exact for recent usage, and small however long it gets."""

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


def history(*held: tuple[float, int]) -> str:
    """The history of a project that held so many GPUs for so many hours, one after the other."""
    text, now = extend_history("", NOTHING, START), START
    for hours, gpus in held:
        now += hours * HOUR
        text = extend_history(text, Amounts(gpu=gpus * 1000), now)
    return text


def gpu_hours(text: str, held: Amounts, now: float, since: float = START, half_life: float | None = None) -> float:
    return weighted_usage(text, held, now, since, half_life)[0] / 1000 / HOUR


def test_present_usage_counts_since_the_last_entry() -> None:
    """Nothing is written while nothing changes, and the time still counts."""
    text = history((1, 2))
    assert gpu_hours(text, GPUS_4, START + 3 * HOUR) == pytest.approx(2 + 8)


def test_window() -> None:
    """Only usage in the window counts, also when the window begins within an entry."""
    text = history((2, 8), (2, 1))
    now = START + 4 * HOUR
    assert gpu_hours(text, NOTHING, now, since=START + HOUR) == pytest.approx(8 + 2)
    assert gpu_hours(text, NOTHING, now, since=START + 3 * HOUR) == pytest.approx(1)
    assert gpu_hours(text, NOTHING, now, since=now) == 0


def test_half_life() -> None:
    """Usage one half-life ago counts half, two half-lives ago a quarter; exactly, also within one long entry."""
    second = 1 / HOUR
    text = history((second, 8), (2, 0))
    assert gpu_hours(text, NOTHING, START + 2 * HOUR, half_life=HOUR) == pytest.approx(8 * second / 4, rel=1e-3)
    # 1 GPU for ever: the sum of all halves is h / ln 2.
    long = history((1000, 1))
    now = START + 1000 * HOUR
    assert gpu_hours(long, NOTHING, now, since=0, half_life=HOUR) == pytest.approx(1 / 0.693147, rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_small_and_accurate(seed: int) -> None:
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
    assert sum(entry.gpu for entry in parse_history(text)) == pytest.approx(total, rel=1e-3)


def test_old_usage_is_dropped() -> None:
    """Beyond five weeks nothing is kept."""
    text = history((1, 8), (KEPT_SECONDS / HOUR + 1, 0), (1, 1))
    assert gpu_hours(text, NOTHING, START + KEPT_SECONDS * 2, since=0) == pytest.approx(1)


def test_clock_set_back() -> None:
    """Time that already counted does not count again."""
    text = history((2, 1))
    assert extend_history(text, GPUS_4, START + HOUR) == text


@pytest.mark.parametrize("text", ["nonsense", "1:2:3", "1:a:2:3"])
def test_unreadable_history(text: str) -> None:
    """It counts as empty, and a new history begins."""
    assert weighted_usage(text, GPUS_4, START, 0, None) == (0, 0, 0)
    assert len(parse_history(extend_history(text, GPUS_4, START))) == 1


def _project_with_history(name: str, *held: tuple[float, int], now: int = 0) -> Project:
    return Project(
        metadata=Metadata(name=name), status=ProjectStatus(history=history(*held), allocated=Amounts(gpu=now * 1000))
    )


def _pool(gpus: int) -> NodePool:
    total = Amounts(gpu=gpus * 1000)
    return NodePool(
        metadata=Metadata(name="default"),
        status=NodePoolStatus(total=total, history=extend_history("", NOTHING, START)),
    )


def test_usage_is_relative_to_capacity() -> None:
    """24 GPU-hours of 100 possible ones are 0.24 (SCH-55); projects without usage are left out."""
    projects = [_project_with_history("a", (6, 4), (4, 0)), _project_with_history("b", (10, 0))]
    usage = past_usage(projects, [_pool(10)], PastUse(weight=1), START + 10 * HOUR)
    assert usage.keys() == {"a"}
    assert usage["a"][0] == pytest.approx(0.24)


def test_tumbling_window() -> None:
    """Past usage is zero when a new window begins."""
    rule = PastUse(weight=1, window=int(10 * HOUR), window_type="tumbling")
    begin = (START + 10 * HOUR) // (10 * HOUR) * 10 * HOUR
    project = _project_with_history("a", ((begin - START) / HOUR, 4))
    assert past_usage([project], [_pool(10)], rule, begin) == {}
    assert past_usage([project], [_pool(10)], rule, begin - 1)["a"][0] == pytest.approx(0.4, abs=0.01)


def test_usage_of_a_department() -> None:
    """It is the sum of its projects' usage."""
    queues = [Queue("a", "department/d"), Queue("b", "department/d"), Queue("c"), Queue("department/d")]
    usage = {queue.name: queue.usage[0] for queue in with_past_usage(queues, {"a": (0.25, 0, 0), "b": (0.5, 0, 0)})}
    assert usage == {"a": 0.25, "b": 0.5, "c": 0, "department/d": 0.75}


def test_policy_for_past_usage() -> None:
    """The first policy by name that gives past usage a weight decides."""

    def policy(name: str, weight: float) -> SchedulingPolicy:
        return SchedulingPolicy(
            metadata=Metadata(name=name), spec=SchedulingPolicySpec(usage=PastUse(weight=weight, window=60))
        )

    assert usage_rule([policy("c", 3), policy("b", 2), policy("a", 0)]) == PastUse(weight=2, window=60)
    assert usage_rule([policy("a", 0)]) is None
