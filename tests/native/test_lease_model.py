"""lease.c against the Python model of the rules: the same events, and the whole state compared after each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import lease_model as m
from native.lease_implementations import LeaseRules, Library, Model

MS = m.MS
PROCESSES = 3  # of each tenant
tenants = st.integers(0, 3)
event_kinds = st.one_of(
    st.tuples(st.just("ask"), tenants, st.integers(0, PROCESSES - 1)),
    st.tuples(st.just("ask"), tenants, st.integers(0, PROCESSES - 1)),
    st.tuples(
        st.sampled_from(["drained", "emptied", "launched", "begins", "ends"]), tenants, st.integers(0, PROCESSES - 1)
    ),
    st.tuples(st.just("join"), st.integers(0, 40), st.sampled_from([1, 100, 250, 700, 1000])),
)
pauses = st.one_of(
    st.integers(0, 12 * MS), st.sampled_from([0, 1, 500_000, m.IDLE, m.HAND_OVER, m.QUANTUM]), st.integers(0, 400 * MS)
)


def check_same_state(
    library: Path, weights: list[tuple[int, bool]], events: list[tuple[tuple[str, int, int], int]]
) -> None:
    """Drives the model and lease.c with the same events and compares results and state after each."""
    model, lease_c = Model(), Library(library)
    implementations: list[LeaseRules] = [model, lease_c]
    now = 10_000 * MS
    counted: dict[tuple[int, int], int] = {}
    for i, (weight, strict) in enumerate(weights):
        for rules in implementations:
            rules.step(m.Join(f"t{i}", weight, strict), now)
    for (kind, who, detail), pause in events:
        now += pause
        me = who % len(weights)
        counted_lease = counted.get((me, detail), 0)
        event: m.Event
        match kind:
            case "ask":
                event = m.Ask(me)
            case "drained":
                event = m.Drained(me)
            case "emptied":
                event = m.Emptied(me, counted_lease)
            case "launched":
                event = m.Launched(me, counted_lease)
            case "begins":
                event = m.WaitBegins(me)
            case "ends":
                event = m.WaitEnds(me)
            case _:
                event = m.Join(f"t{who}", detail, detail == 250)
        expected, actual = (rules.step(event, now) for rules in implementations)
        assert expected == actual, event
        assert model.state() == lease_c.state(), event
        assert model.crowded(me, now) == lease_c.crowded(me, now)
        for action in expected:
            if isinstance(action, m.Counted):
                counted[me, detail] = action.lease


tenancies = st.lists(st.tuples(st.sampled_from([1, 10, 250, 500, 750, 1000]), st.booleans()), min_size=1, max_size=4)
histories = st.lists(st.tuples(event_kinds, pauses), max_size=80)


@settings(max_examples=60, deadline=None)
@given(weights=tenancies, events=histories)
def test_the_library_follows_the_model(
    lease_library: Path, weights: list[tuple[int, bool]], events: list[tuple[tuple[str, int, int], int]]
) -> None:
    """After any events, the state and the results of lease.c equal those of the model."""
    check_same_state(lease_library, weights, events)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(weights=tenancies, events=histories)
def test_the_library_follows_the_model_for_long(
    lease_library: Path, weights: list[tuple[int, bool]], events: list[tuple[tuple[str, int, int], int]]
) -> None:
    """The same with thousands of histories."""
    check_same_state(lease_library, weights, events)
