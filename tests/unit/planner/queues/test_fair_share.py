"""How one resource is divided among queues."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.planner.queues.fair_share import Demand, divide


def demand(quota: float | None, amount: float = 1000, weight: float = 1, name: str = "q", **more: Any) -> Demand:
    return Demand(name, None if quota is None else round(quota * 1000), round(amount * 1000), weight, **more)


def shares(total: float, *demands: Demand, unit: int = 1, usage_weight: float = 0) -> list[float]:
    return [milli / 1000 for milli in divide(round(total * 1000), demands, unit, usage_weight)]


@pytest.mark.parametrize(
    ("total", "demands", "expected"),
    [
        pytest.param(8, [demand(3, weight=3), demand(1, weight=1)], [6, 2], id="75 and 25 of the spare (D1)"),
        pytest.param(12, [demand(3, weight=3), demand(1, weight=1)], [9, 3], id="the same in a larger cluster (D4)"),
        pytest.param(8, [demand(3, weight=1), demand(1, weight=3)], [4, 4], id="low and high (PRJ-32, D12)"),
        pytest.param(36, [demand(10, weight=2), demand(6, weight=3), demand(0)], [16.667, 16, 3.333], id="SCH-31, D13"),
        pytest.param(80, [demand(60, 100), demand(40, 100)], [60, 40], id="quotas above their department's (PRJ-23)"),
        pytest.param(4, [demand(4), demand(4)], [4, 4], id="quotas alone may exceed the total"),
        pytest.param(10, [demand(4, 1), demand(2, 20)], [1, 9], id="quota that is not demanded is spare"),
        pytest.param(10, [demand(0, 2), demand(0, 20), demand(0, 20)], [2, 4, 4], id="less demand leaves the rest"),
        pytest.param(10, [demand(0, 2), demand(0, 3)], [2, 3], id="no queue gets more than it demands"),
        pytest.param(10, [demand(2, weight=0), demand(2)], [2, 8], id="no spare without weight"),
        pytest.param(10, [demand(None), demand(1)], [10, 1], id="an unlimited quota covers the total"),
        pytest.param(10, [demand(0), demand(0)], [5, 5], id="equal parts"),
        pytest.param(0, [demand(0), demand(0)], [0, 0], id="nothing to divide"),
        pytest.param(10, [], [], id="no queues"),
    ],
)
def test_division(total: float, demands: list[Demand], expected: list[float]) -> None:
    """Quotas come first, then the spare in proportion to the weights, as far as it is demanded."""
    assert shares(total, *demands) == expected


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        pytest.param([demand(0, priority=200), demand(0)], [10, 0], id="the highest takes what it demands"),
        pytest.param([demand(0, 4, priority=200), demand(0)], [4, 6], id="and leaves the rest"),
        pytest.param([demand(0, priority=200), demand(3)], [7, 3], id="but quotas come first"),
        pytest.param([demand(0, weight=0, priority=200), demand(0)], [0, 10], id="no spare without weight"),
    ],
)
def test_priority(demands: list[Demand], expected: list[float]) -> None:
    """The spare is divided by priority, highest first."""
    assert shares(10, *demands) == expected


def test_queues_marked_last() -> None:
    """Queues marked as last divide what the others of their priority leave."""
    demands = [demand(1, 4), demand(0, last=True), demand(0, last=True)]
    assert shares(10, *demands) == [4, 3, 3]


def test_remainder_of_a_thousandth() -> None:
    """A thousandth that is left over goes to the largest remainder."""
    assert shares(10, demand(0), demand(0), demand(0, weight=2)) == [2.5, 2.5, 5]
    assert sum(shares(10, demand(0), demand(0), demand(0))) == 10


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        pytest.param([demand(0, name="b"), demand(0, name="a")], [2, 3], id="ties by name"),
        pytest.param([demand(0, name="b", created=-1), demand(0, name="a")], [3, 2], id="the oldest before the name"),
        pytest.param([demand(0, weight=3, name="b"), demand(0, weight=2, name="a")], [3, 2], id="nothing left over"),
        pytest.param([demand(0, weight=5, name="b"), demand(0, weight=1, name="a")], [4, 1], id="largest remainder"),
    ],
)
def test_whole_units(demands: list[Demand], expected: list[float]) -> None:
    """In whole GPUs the parts are rounded down, and each GPU left over goes to the largest remainder."""
    assert shares(5, *demands, unit=1000) == expected


def test_whole_units_of_weights() -> None:
    """SCH-31 in whole GPUs: 16, 16 and 3, and one left for the largest remainder."""
    result = shares(36, demand(10, weight=2), demand(6, weight=3), demand(0), unit=1000)
    assert result == [17, 16, 3]


def test_a_fractional_demand_is_met_exactly() -> None:
    """Whole units round a part of the spare, not a demand that is met."""
    assert shares(4, demand(0, 0.5), demand(0), unit=1000) == [0.5, 3.5]


@pytest.mark.parametrize(
    ("usage", "k", "expected"),
    [
        pytest.param((0.24, 0), 1, [4.318, 5.682], id="0.76 to 1 (D16)"),
        pytest.param((0.12, 0), 1, [4.681, 5.319], id="half of it a half-life later (D16)"),
        pytest.param((0.24, 0), 0, [5, 5], id="without k the past does not count"),
        pytest.param((0.5, 0.5), 1, [5, 5], id="equal past use changes nothing"),
        pytest.param((1, 0), 1, [0, 10], id="never below zero"),
        pytest.param((0, 0), 3, [5, 5], id="k without past use changes nothing"),
    ],
)
def test_past_use(usage: tuple[float, float], k: float, expected: list[float]) -> None:
    """A queue that used more than its part gets less of the spare."""
    assert shares(10, *(demand(0, usage=used) for used in usage), usage_weight=k) == expected


def test_past_use_does_not_reduce_quota() -> None:
    """Quota is guaranteed, however much was used."""
    assert shares(10, demand(4, usage=1.0), demand(0), usage_weight=5) == [4, 6]
