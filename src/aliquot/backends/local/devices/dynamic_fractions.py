"""Dynamic fractions: memory that is guaranteed to nobody, or to somebody who does not use it, is lent.

A pod with request 0.25 and limit 0.8 is placed by its request. What it holds beyond that is borrowed, from what is
left of the card and from neighbours that have no process on it. As soon as a neighbour has one, its whole guarantee
is its own again: the limits of those who borrowed fall, and who holds more than fits is stopped (see audit.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STARTING_SECONDS = 60.0  # so long a pod counts as one that uses its GPU: its first context must find room


@dataclass(frozen=True, slots=True)
class Claim:
    """One pod on a card; bytes."""

    uid: str
    guaranteed: int
    # How far it may grow; never less than what is guaranteed.
    cap: int
    used: int
    # Whether it uses the GPU, or is about to.
    active: bool

    @property
    def borrowed(self) -> int:
        return max(0, self.used - self.guaranteed)


def limits(claims: Sequence[Claim], total: int) -> dict[str, int]:
    """What each may hold now, by pod. Nobody's falls below its guarantee; together, what is kept for those who use
    the card and what is lent fit on it."""
    kept = sum(claim.guaranteed if claim.active or claim.used else 0 for claim in claims)
    free = total - kept - sum(claim.borrowed for claim in claims)
    given_back = _given_back(claims, -free)
    return {
        claim.uid: max(claim.guaranteed, claim.used - given_back[claim.uid]) if free < 0 else _grown(claim, free, total)
        for claim in claims
    }


def _given_back(claims: Sequence[Claim], missing: int) -> dict[str, int]:
    """Who borrowed most gives back first, so that as few as can be are stopped."""
    found = {}
    for claim in sorted(claims, key=lambda claim: (-claim.borrowed, claim.uid)):
        found[claim.uid] = max(0, min(claim.borrowed, missing))
        missing -= found[claim.uid]
    return found


def _grown(claim: Claim, free: int, total: int) -> int:
    """All that is free may be taken by each: who comes first has it, and the others' limits fall."""
    # One that is not active keeps nothing for itself yet; its own guarantee comes on top.
    reach = max(claim.used, claim.guaranteed) + free
    if not (claim.active or claim.used):
        reach = max(claim.guaranteed, free)
    return max(claim.guaranteed, min(claim.cap, reach, total))
