"""Dynamic fractions: what is lent, and given back when its owner needs it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.backends.local.devices.dynamic_fractions import PodMemory, limits

TOTAL = 1000


def test_a_part_grows_into_what_is_free() -> None:
    """F12: alone on the card, request 0.25 and limit 0.8 may hold 0.8 of it."""
    assert limits([PodMemory("x", 250, 800, 100, True)], TOTAL) == {"x": 800}


def test_an_idle_neighbour_lends() -> None:
    """Memory that is guaranteed to a pod without a process on the card may be borrowed."""
    claims = [PodMemory("x", 250, 800, 250, True), PodMemory("idle", 500, 500, 0, False)]

    assert limits(claims, TOTAL) == {"x": 800, "idle": 500}


def test_who_needs_it_has_it() -> None:
    """F12: as soon as the owner uses the card the borrower's limit falls to what is left."""
    claims = [PodMemory("x", 250, 800, 800, True), PodMemory("owner", 500, 500, 10, True)]

    assert limits(claims, TOTAL) == {"x": 500, "owner": 500}


def test_one_borrower_gives_back_before_two() -> None:
    """Who borrowed most gives back first; the other keeps what it has."""
    claims = [
        PodMemory("large", 100, 600, 500, True),
        PodMemory("small", 100, 600, 200, True),
        PodMemory("owner", 500, 500, 1, True),
    ]

    assert limits(claims, TOTAL) == {"large": 300, "small": 200, "owner": 500}


def test_what_one_takes_the_other_cannot() -> None:
    """Two that may grow share what is free: what one has taken is not offered to the other."""
    claims = [PodMemory("x", 200, 1000, 700, True), PodMemory("y", 200, 1000, 200, True)]

    assert limits(claims, TOTAL) == {"x": 800, "y": 300}


@st.composite
def cards(draw: st.DrawFn) -> list[PodMemory]:
    """Pods whose guarantees fit on the card, as the scheduler places them, holding whatever they could."""
    claims, left, free = [], TOTAL, TOTAL
    for index in range(draw(st.integers(1, 5))):
        guaranteed = draw(st.integers(0, left))
        cap = draw(st.integers(guaranteed, TOTAL))
        used = draw(st.integers(0, min(cap, free)))
        left, free = left - guaranteed, free - used
        claims.append(PodMemory(str(index), guaranteed, cap, used, used > 0 or draw(st.booleans())))
    return claims


@given(cards())
def test_guarantees_hold(claims: list[PodMemory]) -> None:
    """Nobody's limit is below its guarantee or above its cap; and once all keep to theirs, every guarantee is free."""
    found = limits(claims, TOTAL)

    for claim in claims:
        assert claim.guaranteed <= found[claim.uid] <= max(claim.cap, claim.guaranteed)
    held = {claim.uid: min(claim.used, found[claim.uid]) for claim in claims}
    borrowed = sum(max(0, held[claim.uid] - claim.guaranteed) for claim in claims)
    assert sum(claim.guaranteed for claim in claims if claim.active) + borrowed <= TOTAL
