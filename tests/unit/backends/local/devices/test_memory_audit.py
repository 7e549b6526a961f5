"""When a pod holds more GPU memory than its limit, and which processes are killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.backends.local.devices.gpu_driver import ProcessMemory
from aliquot.backends.local.devices.memory_audit import (
    SAMPLES,
    PodUsage,
    find_overruns,
    overrun_message,
    processes_to_kill,
    usage_by_pod,
)
from aliquot.units import MIB


def held(*used_mib: int, limit_mib: int = 8192) -> PodUsage:
    uses = tuple(ProcessMemory("GPU-a", 100 + place, mib * MIB) for place, mib in enumerate(used_mib))
    return PodUsage("pod-1", "GPU-a", limit_mib * MIB, uses)


@pytest.mark.parametrize(
    ("used", "limit", "wanted"),
    [(8192, 8192, False), (8256, 8192, False), (8275, 8192, True), (464, 400, False), (465, 400, True), (600, 0, True)],
)
def test_what_is_over(used: int, limit: int, wanted: bool) -> None:
    """A pod is over its limit when it exceeds it by more than 1%, and by more than 64 MiB."""
    assert held(used, limit_mib=limit).is_over is wanted


def test_one_sample_is_no_proof() -> None:
    """Only a pod that is over its limit three times in a row is acted upon, and then in each check until it fits."""
    counts: dict[tuple[str, str], int] = {}
    acted = []
    for used in (9000, 9000, 8000, 9000, 9000, 9000, 9000, 8000):
        counts, found = find_overruns(counts, [held(used)])
        acted.append(len(found))

    assert acted == [0, 0, 0, 0, 0, 1, 1, 0]
    assert SAMPLES == 3


def test_the_largest_process_is_killed() -> None:
    """As few processes as possible are killed: the largest ones, until the rest fits."""
    assert processes_to_kill(held(1000, 6000, 3000)) == [101]
    assert processes_to_kill(held(5000, 5000, 5000)) == [100, 101]


@given(st.lists(st.integers(0, 10_000), max_size=6), st.integers(0, 20_000))
def test_what_is_left_fits(used: list[int], limit: int) -> None:
    """Whatever was held, the remaining processes hold at most the limit."""
    usage = held(*used, limit_mib=limit)
    ended = set(processes_to_kill(usage))

    assert sum(use.used for use in usage.processes if use.pid not in ended) <= usage.limit


def test_processes_are_summed_by_pod() -> None:
    """All processes of a pod count together; processes of other pods, and of no pod, do not."""
    uses = [
        ProcessMemory("GPU-a", 1, 10),
        ProcessMemory("GPU-a", 2, 20),
        ProcessMemory("GPU-a", 3, 40),
        ProcessMemory("GPU-b", 1, 80),
    ]

    found = usage_by_pod(uses, {1: "x", 2: "x", 3: "y"}, {"x": {"GPU-a": 5, "GPU-b": 6}, "y": {"GPU-a": 7}})

    assert [(one.uid, one.uuid, one.limit, one.used) for one in found] == [
        ("x", "GPU-a", 5, 30),
        ("x", "GPU-b", 6, 80),
        ("y", "GPU-a", 7, 40),
    ]


def test_a_gpu_that_was_not_given() -> None:
    """A pod may hold nothing on a GPU on which it has no share."""
    (own, stolen) = usage_by_pod([ProcessMemory("GPU-b", 1, MIB)], {1: "x"}, {"x": {"GPU-a": 5}})

    assert (own.used, stolen.uuid, stolen.limit) == (0, "GPU-b", 0)
    assert "where it has no share" in overrun_message(stolen)


def test_both_figures_are_named() -> None:
    """The message has what was held and what was allowed."""
    assert "holds 9000 MiB" in overrun_message(held(9000))
    assert "limit is 8192 MiB" in overrun_message(held(9000))
