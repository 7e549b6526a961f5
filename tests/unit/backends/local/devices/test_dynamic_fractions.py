"""Dynamic fractions: memory that is lent, and returned when its owner needs it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.backends.local.devices.dynamic_fractions import PodMemory, limits

TOTAL = 1000


def test_a_fraction_grows_into_free_memory() -> None:
    """F12: alone on the GPU, a pod with request 0.25 and limit 0.8 may hold 0.8 of it."""
    assert limits([PodMemory("x", 250, 800, 100, True)], TOTAL) == {"x": 800}


def test_an_idle_pod_lends() -> None:
    """Memory that is guaranteed to a pod without a process on the GPU may be borrowed."""
    pods = [PodMemory("x", 250, 800, 250, True), PodMemory("idle", 500, 500, 0, False)]

    assert limits(pods, TOTAL) == {"x": 800, "idle": 500}


def test_the_owner_gets_its_guarantee() -> None:
    """F12: as soon as the owner uses the GPU, the borrower's limit falls to what is left."""
    pods = [PodMemory("x", 250, 800, 800, True), PodMemory("owner", 500, 500, 10, True)]

    assert limits(pods, TOTAL) == {"x": 500, "owner": 500}


def test_the_largest_borrower_returns_first() -> None:
    """The largest borrower returns memory first; the other keeps its memory."""
    pods = [
        PodMemory("large", 100, 600, 500, True),
        PodMemory("small", 100, 600, 200, True),
        PodMemory("owner", 500, 500, 1, True),
    ]

    assert limits(pods, TOTAL) == {"large": 300, "small": 200, "owner": 500}


def test_two_borrowers_share_free_memory() -> None:
    """Memory that one borrower has taken does not raise the limit of the other."""
    pods = [PodMemory("x", 200, 1000, 700, True), PodMemory("y", 200, 1000, 200, True)]

    assert limits(pods, TOTAL) == {"x": 800, "y": 300}


@st.composite
def pods_on_a_gpu(draw: st.DrawFn) -> list[PodMemory]:
    """Pods whose guarantees fit on the GPU, as the scheduler places them, with any memory that they could hold."""
    pods, left, free = [], TOTAL, TOTAL
    for index in range(draw(st.integers(1, 5))):
        guaranteed = draw(st.integers(0, left))
        cap = draw(st.integers(guaranteed, TOTAL))
        used = draw(st.integers(0, min(cap, free)))
        left, free = left - guaranteed, free - used
        pods.append(PodMemory(str(index), guaranteed, cap, used, used > 0 or draw(st.booleans())))
    return pods


@given(pods_on_a_gpu())
def test_guarantees_hold(pods: list[PodMemory]) -> None:
    """No limit is below the guarantee or above the cap; and once all pods respect theirs, every guarantee is free."""
    current = limits(pods, TOTAL)

    for pod in pods:
        assert pod.guaranteed <= current[pod.uid] <= max(pod.cap, pod.guaranteed)
    held = {pod.uid: min(pod.used, current[pod.uid]) for pod in pods}
    borrowed = sum(max(0, held[pod.uid] - pod.guaranteed) for pod in pods)
    assert sum(pod.guaranteed for pod in pods if pod.active) + borrowed <= TOTAL
