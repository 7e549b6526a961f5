"""Fair share as a division: what each claim gets of one resource."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.planner.queues.fair_share import Demand, divide


def claim(quota: float | None, wanted: float = 1000, weight: float = 1, name: str = "q", **more: Any) -> Demand:
    return Demand(name, None if quota is None else round(quota * 1000), round(wanted * 1000), weight, **more)


def shares(total: float, *claims: Demand, unit: int = 1, usage_weight: float = 0) -> list[float]:
    return [milli / 1000 for milli in divide(round(total * 1000), claims, unit, usage_weight)]


@pytest.mark.parametrize(
    ("total", "claims", "expected"),
    [
        pytest.param(8, [claim(3, weight=3), claim(1, weight=1)], [6, 2], id="75 and 25 of what is beyond (D1)"),
        pytest.param(12, [claim(3, weight=3), claim(1, weight=1)], [9, 3], id="the same in a larger cluster (D4)"),
        pytest.param(8, [claim(3, weight=1), claim(1, weight=3)], [4, 4], id="low and high (PRJ-32, D12)"),
        pytest.param(36, [claim(10, weight=2), claim(6, weight=3), claim(0)], [16.667, 16, 3.333], id="SCH-31, D13"),
        pytest.param(80, [claim(60, 100), claim(40, 100)], [60, 40], id="quotas beyond their department's (PRJ-23)"),
        pytest.param(4, [claim(4), claim(4)], [4, 4], id="quotas alone may be more than there is"),
        pytest.param(10, [claim(4, 1), claim(2, 20)], [1, 9], id="a quota that is not asked for is spare"),
        pytest.param(10, [claim(0, 2), claim(0, 20), claim(0, 20)], [2, 4, 4], id="who needs less leaves the rest"),
        pytest.param(10, [claim(0, 2), claim(0, 3)], [2, 3], id="nobody gets more than it asks for"),
        pytest.param(10, [claim(2, weight=0), claim(2)], [2, 8], id="without weight no spare"),
        pytest.param(10, [claim(None), claim(1)], [10, 1], id="an unlimited quota is all there is"),
        pytest.param(10, [claim(0), claim(0)], [5, 5], id="even"),
        pytest.param(0, [claim(0), claim(0)], [0, 0], id="nothing to divide"),
        pytest.param(10, [], [], id="nobody"),
    ],
)
def test_division(total: float, claims: list[Demand], expected: list[float]) -> None:
    """Quotas first, then the spare in the ratio of the weights, as long as somebody wants it."""
    assert shares(total, *claims) == expected


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param([claim(0, priority=200), claim(0)], [10, 0], id="the highest takes what it wants"),
        pytest.param([claim(0, 4, priority=200), claim(0)], [4, 6], id="and leaves the rest"),
        pytest.param([claim(0, priority=200), claim(3)], [7, 3], id="but a quota is a quota"),
        pytest.param([claim(0, weight=0, priority=200), claim(0)], [0, 10], id="without weight it is no claim"),
    ],
)
def test_priority(claims: list[Demand], expected: list[float]) -> None:
    """Spare goes level by level, highest priority first."""
    assert shares(10, *claims) == expected


def test_last() -> None:
    """Who is last of its level gets what the others of it leave, and all such get it alike."""
    claims = [claim(1, 4), claim(0, last=True), claim(0, last=True)]
    assert shares(10, *claims) == [4, 3, 3]


def test_thousandths_that_do_not_come_out_even() -> None:
    """A thousandth that is left goes to the largest remainder."""
    assert shares(10, claim(0), claim(0), claim(0, weight=2)) == [2.5, 2.5, 5]
    assert sum(shares(10, claim(0), claim(0), claim(0))) == 10


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        pytest.param([claim(0, name="b"), claim(0, name="a")], [2, 3], id="ties by name"),
        pytest.param([claim(0, name="b", created=-1), claim(0, name="a")], [3, 2], id="the oldest before the name"),
        pytest.param([claim(0, weight=3, name="b"), claim(0, weight=2, name="a")], [3, 2], id="nothing left over"),
        pytest.param([claim(0, weight=5, name="b"), claim(0, weight=1, name="a")], [4, 1], id="largest remainder"),
    ],
)
def test_whole_units(claims: list[Demand], expected: list[float]) -> None:
    """With whole GPUs the parts are rounded down, and each GPU that is left goes to the largest remainder."""
    assert shares(5, *claims, unit=1000) == expected


def test_whole_units_of_weights() -> None:
    """SCH-31 in whole GPUs: 16, 16 and 3, and one left for the largest remainder."""
    found = shares(36, claim(10, weight=2), claim(6, weight=3), claim(0), unit=1000)
    assert found == [17, 16, 3]


def test_a_fraction_of_need_is_met_exactly() -> None:
    """Whole units round what is given beyond need, not what is needed."""
    assert shares(4, claim(0, 0.5), claim(0), unit=1000) == [0.5, 3.5]


@pytest.mark.parametrize(
    ("usage", "k", "expected"),
    [
        pytest.param((0.24, 0), 1, [4.318, 5.682], id="0.76 to 1 (D16)"),
        pytest.param((0.12, 0), 1, [4.681, 5.319], id="half of it a half-life later (D16)"),
        pytest.param((0.24, 0), 0, [5, 5], id="without k the past is nothing"),
        pytest.param((0.5, 0.5), 1, [5, 5], id="who used its part is as before"),
        pytest.param((1, 0), 1, [0, 10], id="never below nothing"),
        pytest.param((0, 0), 3, [5, 5], id="without a past k is nothing"),
    ],
)
def test_past_use(usage: tuple[float, float], k: float, expected: list[float]) -> None:
    """Who used more than its part gets less of the spare."""
    assert shares(10, *(claim(0, usage=used) for used in usage), usage_weight=k) == expected


def test_past_use_leaves_quota_alone() -> None:
    """However much was used, a quota is guaranteed."""
    assert shares(10, claim(4, usage=1.0), claim(0), usage_weight=5) == [4, 6]
