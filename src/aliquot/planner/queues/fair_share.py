"""Fair share: how much of a resource each queue is entitled to.

Each queue first gets the part of its demand that its quota covers. What is left is *spare*. It goes to queues that
demand more: by priority, highest first, and among queues of one priority in proportion to their weights. A queue that
needs less than its part leaves the rest to the others. The children of a queue then divide their parent's share.

A share does not limit what a queue may hold, because a queue may borrow what no other queue wants. It decides which
queue comes next and what can be reclaimed.

All arithmetic is on integers. What a division leaves over goes, one unit each, to the largest remainders. The unit is a
thousandth of a GPU, or a whole GPU if the policy says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import lcm


@dataclass(frozen=True, slots=True)
class Demand:
    """One queue's demand for one resource, and what decides how much of it is met."""

    name: str
    quota: int | None  # None: unlimited
    amount: int  # what it holds and waits for, never more than its limit
    weight: float = 1
    priority: int = 100
    usage: float = 0  # past usage as a fraction of the cluster
    created: float = 0
    last: bool = False  # gets only what the other queues of its priority leave


def divide(total: int, demands: Sequence[Demand], unit: int = 1, usage_weight: float = 0) -> list[int]:
    """A share for each demand, in their order. Quotas alone may add up to more than the total."""
    shares = [min(demand.amount, total if demand.quota is None else demand.quota) for demand in demands]
    spare = total - sum(shares)
    if spare <= 0:
        return shares
    levels = [(-demand.priority, demand.last) for demand in demands]
    remainders_by_level = []
    for _, level in groupby(sorted(range(len(demands)), key=levels.__getitem__), key=levels.__getitem__):
        spare, remainders = _divide_level(spare, list(level), demands, shares, unit, usage_weight)
        remainders_by_level.append(remainders)
    for remainders in remainders_by_level:
        for i in sorted(remainders, key=lambda i: (-remainders[i], demands[i].created, demands[i].name)):
            added = min(unit, spare)
            shares[i] += added
            spare -= added
    return shares


def _divide_level(
    spare: int, level: list[int], demands: Sequence[Demand], shares: list[int], unit: int, usage_weight: float
) -> tuple[int, dict[int, Fraction]]:
    """Divides the spare among queues of one priority, in rounds until no queue needs less than its part. Adds to
    `shares`; returns what is left, and the remainders."""
    remainders: dict[int, Fraction] = {}
    while spare > 0:
        unmet = [i for i in level if demands[i].weight > 0 and demands[i].amount > shares[i]]
        weights = _integer_weights([demands[i] for i in unmet], usage_weight)
        total_weight = sum(weights)
        if not total_weight:
            break
        any_met = False
        to_divide = spare  # in this round; what one queue leaves is for the next round
        for i, weight in zip(unmet, weights, strict=True):
            need = demands[i].amount - shares[i]
            if need * total_weight <= to_divide * weight:
                part, any_met = need, True
                remainders.pop(i, None)
            else:
                part = to_divide * weight // (total_weight * unit) * unit
                remainders[i] = Fraction(to_divide * weight - part * total_weight, total_weight)
            shares[i] += part
            spare -= part
        if not any_met:
            break
    return spare, remainders


def _integer_weights(demands: Sequence[Demand], usage_weight: float) -> list[int]:
    """Weights in proportion, as integers. A queue that used more than its part in the past weighs less."""
    weights = [Fraction(demand.weight) for demand in demands]
    total = sum(weights)
    if usage_weight > 0 and total:
        k = Fraction(usage_weight)
        normal = [weight / total for weight in weights]
        weights = [
            max(Fraction(0), weight + k * (weight - Fraction(demand.usage)))
            for weight, demand in zip(normal, demands, strict=True)
        ]
    scale = lcm(*(weight.denominator for weight in weights))
    return [int(weight * scale) for weight in weights]
