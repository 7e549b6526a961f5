"""How much memory a part of a GPU is, and how the sharing library is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot import labels
from aliquot.api import Device, DeviceShare
from aliquot.errors import Invalid
from aliquot.gpu.fractions import ComputeMode, SharingOptions, fraction_mib, gpu_allocation, sharing_options
from aliquot.gpu.limits_file import render_limits
from aliquot.units import MIB

V100 = Device(index=0, uuid="GPU-a", model="Tesla V100-SXM2-32GB", memory_mib=32510)


@pytest.mark.parametrize(
    ("device_mib", "milli", "wanted"),
    [
        (32510, 500, 16255),  # F1
        (23028, 300, 6908),  # F3
        (23028, 500, 11514),  # F4
        (23028, 200, 4605),
        (16130, 500, 8065),  # F5
        (32510, 1000, 32510),
    ],
)
def test_parts_of_known_cards(device_mib: int, milli: int, wanted: int) -> None:
    """The slice is the floor of the fraction of the card's memory."""
    device = Device(index=0, uuid="GPU-a", memory_mib=device_mib)

    assert gpu_allocation(device, DeviceShare(index=0, milli=milli), SharingOptions()).limit_mib == wanted


@pytest.mark.parametrize(("milli", "wanted"), [(500, 71577), (250, 35788)])
def test_parts_are_taken_in_bytes(milli: int, wanted: int) -> None:
    """Of a card that has a part of a MiB over, the fraction is taken in bytes and rounded once."""
    total = 143155 * MIB + MIB * 3 // 4

    assert fraction_mib(milli, total) == wanted


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 200_000))
def test_parts_never_add_up_to_more(parts: list[int], mib: int) -> None:
    """Parts that make at most one device have together at most its memory."""
    scale = max(1000, sum(parts))
    parts = [part * 1000 // scale for part in parts]

    assert sum(fraction_mib(part, mib * MIB) for part in parts) <= mib


def test_memory_is_used_as_asked_for() -> None:
    """A request in MiB is the limit, not what its rounded fraction would be."""
    share = DeviceShare(index=0, milli=123, memory_mib=4096)

    assert gpu_allocation(V100, share, SharingOptions()).limit_mib == 4096


@pytest.mark.parametrize(
    ("wish", "wanted"),
    [
        (SharingOptions(), 8127),
        (SharingOptions(limit_milli=800), 26008),  # F12: request 0.25, limit 0.8
        (SharingOptions(limit_milli=100), 8127),  # never below what is guaranteed
        (SharingOptions(limit_mib=12288), 12288),
        (SharingOptions(limit_mib=1 << 30), 32510),  # nor beyond the card
    ],
)
def test_how_far_it_may_grow(wish: SharingOptions, wanted: int) -> None:
    """A quarter is guaranteed whatever the limit is; the limit is what it may grow to."""
    found = gpu_allocation(V100, DeviceShare(index=0, milli=250), wish)

    assert (found.guaranteed_mib, found.limit_mib) == (8127, wanted)


def test_the_limits_file() -> None:
    """Version, tenant and mode, a line for each GPU in bytes, and an end that says it is whole."""
    found = gpu_allocation(
        V100, DeviceShare(index=0, milli=250), SharingOptions(limit_milli=800, mode=ComputeMode.FAIR), pod_uid="pod-1"
    )

    assert render_limits([found]) == (
        "gpushare 1\ntenant pod-1\nmode fair\n"
        f"gpu GPU-a limit={26008 * MIB} guaranteed={8127 * MIB} weight=250 context=0 cap={26008 * MIB}\nend\n"
    )


def test_wishes_are_read_from_annotations() -> None:
    """How far a pod may grow and how compute is shared stand in its annotations."""
    marks = {labels.GPU_FRACTION_LIMIT: "0.8", labels.GPU_COMPUTE_MODE: "strict"}

    assert sharing_options(marks) == SharingOptions(limit_milli=800, mode=ComputeMode.STRICT)


@pytest.mark.parametrize(
    "marks", [{labels.GPU_FRACTION_LIMIT: "lots"}, {labels.GPU_COMPUTE_MODE: "x"}, {labels.GPU_MEMORY_LIMIT_MIB: "1G"}]
)
def test_a_wish_that_cannot_be_read(marks: dict[str, str]) -> None:
    """It is refused, not passed over: a pod would run with another limit than it was meant to have."""
    with pytest.raises(Invalid, match="cannot be read"):
        sharing_options(marks)
