"""Fair share: how much of what there is each queue is due.

First everybody gets what its quota covers of what it asks for. What is left is *spare*, and goes to those who want
more: level of priority after level, highest first, and inside a level in proportion to their weights. Who needs less
than its part leaves the rest to the others. Children then divide what their parent was given.

A share is not a bound on what a queue may hold: whatever nobody else wants may be borrowed. It says whose turn it is
and what can be taken back.

All arithmetic is on integers: a division that does not come out even leaves units over, and these go one each to the
largest remainders. The unit is a thousandth of a GPU, or a whole one (`unit`) where a cluster is used to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import lcm


@dataclass(frozen=True, slots=True)
class Demand:
    """What one queue brings to the division of one resource."""

    name: str
    quota: int | None  # None: unlimited
    wanted: int  # what it holds and waits for, never more than its limit
    weight: float = 1
    priority: int = 100
    usage: float = 0  # past use as a part of all there was
    created: float = 0
    last: bool = False  # only what the others of its priority leave


def divide(total: int, claims: Sequence[Demand], unit: int = 1, usage_weight: float = 0) -> list[int]:
    """A share for each claim, in their order. Quotas alone may add up to more than there is."""
    shares = [min(claim.wanted, total if claim.quota is None else claim.quota) for claim in claims]
    spare = total - sum(shares)
    if spare <= 0:
        return shares
    levels = [(-claim.priority, claim.last) for claim in claims]
    leftovers = []
    for _, level in groupby(sorted(range(len(claims)), key=levels.__getitem__), key=levels.__getitem__):
        spare, remainders = _share_out(spare, list(level), claims, shares, unit, usage_weight)
        leftovers.append(remainders)
    for remainders in leftovers:
        for i in sorted(remainders, key=lambda i: (-remainders[i], claims[i].created, claims[i].name)):
            given = min(unit, spare)
            shares[i] += given
            spare -= given
    return shares


def _share_out(
    spare: int, level: list[int], claims: Sequence[Demand], shares: list[int], unit: int, usage_weight: float
) -> tuple[int, dict[int, Fraction]]:
    """Rounds in one level of priority until nobody needs less than its part. Writes to `shares`."""
    remainders: dict[int, Fraction] = {}
    while spare > 0:
        hungry = [i for i in level if claims[i].weight > 0 and claims[i].wanted > shares[i]]
        weights = _weights([claims[i] for i in hungry], usage_weight)
        whole = sum(weights)
        if not whole:
            break
        sated = False
        parts = spare  # of this round: what one leaves is for the next
        for i, weight in zip(hungry, weights, strict=True):
            need = claims[i].wanted - shares[i]
            if need * whole <= parts * weight:
                given, sated = need, True
                remainders.pop(i, None)
            else:
                given = parts * weight // (whole * unit) * unit
                remainders[i] = Fraction(parts * weight - given * whole, whole)
            shares[i] += given
            spare -= given
        if not sated:
            break
    return spare, remainders


def _weights(claims: Sequence[Demand], usage_weight: float) -> list[int]:
    """Weights as integers in the right proportion; who used more than its part in the past counts for less now."""
    plain = [Fraction(claim.weight) for claim in claims]
    total = sum(plain)
    if usage_weight > 0 and total:
        k = Fraction(usage_weight)
        normal = [weight / total for weight in plain]
        plain = [
            max(Fraction(0), one + k * (one - Fraction(claim.usage))) for one, claim in zip(normal, claims, strict=True)
        ]
    scale = lcm(*(one.denominator for one in plain))
    return [int(one * scale) for one in plain]
