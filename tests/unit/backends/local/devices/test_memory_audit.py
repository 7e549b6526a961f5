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
    uses = tuple(ProcessMemory("GPU-a", 100 + index, mib * MIB) for index, mib in enumerate(used_mib))
    return PodUsage("pod-1", "GPU-a", limit_mib * MIB, uses)


@pytest.mark.parametrize(
    ("used", "limit", "wanted"),
    [(8192, 8192, False), (8256, 8192, False), (8275, 8192, True), (464, 400, False), (465, 400, True), (600, 0, True)],
)
def test_over_the_limit(used: int, limit: int, wanted: bool) -> None:
    """A pod is over its limit when it exceeds it by more than 1%, and by more than 64 MiB."""
    assert held(used, limit_mib=limit).is_over is wanted


def test_one_sample_is_not_enough() -> None:
    """Only a pod that is over its limit three times in a row is acted upon, and then in each check until it fits."""
    counts: dict[tuple[str, str], int] = {}
    acted = []
    for used in (9000, 9000, 8000, 9000, 9000, 9000, 9000, 8000):
        counts, overruns = find_overruns(counts, [held(used)])
        acted.append(len(overruns))

    assert acted == [0, 0, 0, 0, 0, 1, 1, 0]
    assert SAMPLES == 3


def test_the_largest_process_is_killed() -> None:
    """As few processes as possible are killed: the largest ones, until the rest fits."""
    assert processes_to_kill(held(1000, 6000, 3000)) == [101]
    assert processes_to_kill(held(5000, 5000, 5000)) == [100, 101]


@given(st.lists(st.integers(0, 10_000), max_size=6), st.integers(0, 20_000))
def test_the_remaining_processes_fit(used: list[int], limit: int) -> None:
    """The remaining processes hold at most the limit."""
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

    usages = usage_by_pod(uses, {1: "x", 2: "x", 3: "y"}, {"x": {"GPU-a": 5, "GPU-b": 6}, "y": {"GPU-a": 7}})

    assert [(usage.uid, usage.uuid, usage.limit, usage.used) for usage in usages] == [
        ("x", "GPU-a", 5, 30),
        ("x", "GPU-b", 6, 80),
        ("y", "GPU-a", 7, 40),
    ]


def test_a_gpu_that_was_not_given() -> None:
    """A pod may hold nothing on a GPU on which it has no share."""
    (own, stolen) = usage_by_pod([ProcessMemory("GPU-b", 1, MIB)], {1: "x"}, {"x": {"GPU-a": 5}})

    assert (own.used, stolen.uuid, stolen.limit) == (0, "GPU-b", 0)
    assert "where it has no share" in overrun_message(stolen)


def test_the_message_has_both_figures() -> None:
    """The message shows the memory held and the limit."""
    assert "holds 9000 MiB" in overrun_message(held(9000))
    assert "limit is 8192 MiB" in overrun_message(held(9000))
