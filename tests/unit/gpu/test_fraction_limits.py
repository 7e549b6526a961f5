"""The memory of a GPU fraction, and the limits file of the sharing library."""

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
def test_fractions_of_known_gpus(device_mib: int, milli: int, wanted: int) -> None:
    """The limit is the fraction of the GPU's memory, rounded down."""
    device = Device(index=0, uuid="GPU-a", memory_mib=device_mib)

    assert gpu_allocation(device, DeviceShare(index=0, milli=milli), SharingOptions()).limit_mib == wanted


@pytest.mark.parametrize(("milli", "wanted"), [(500, 71577), (250, 35788)])
def test_fractions_are_computed_in_bytes(milli: int, wanted: int) -> None:
    """For a GPU whose memory is not a whole number of MiB, the fraction is computed in bytes and rounded once."""
    total = 143155 * MIB + MIB * 3 // 4

    assert fraction_mib(milli, total) == wanted


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 200_000))
def test_fractions_never_exceed_the_device(parts: list[int], mib: int) -> None:
    """Fractions that add up to at most one device have together at most its memory."""
    scale = max(1000, sum(parts))
    parts = [part * 1000 // scale for part in parts]

    assert sum(fraction_mib(part, mib * MIB) for part in parts) <= mib


def test_memory_is_used_as_requested() -> None:
    """A request in MiB is the limit, not its rounded fraction."""
    share = DeviceShare(index=0, milli=123, memory_mib=4096)

    assert gpu_allocation(V100, share, SharingOptions()).limit_mib == 4096


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (SharingOptions(), 8127),
        (SharingOptions(limit_milli=800), 26008),  # F12: request 0.25, limit 0.8
        (SharingOptions(limit_milli=100), 8127),  # never below the guarantee
        (SharingOptions(limit_mib=12288), 12288),
        (SharingOptions(limit_mib=1 << 30), 32510),  # nor above the GPU's memory
    ],
)
def test_guarantee_and_limit(options: SharingOptions, wanted: int) -> None:
    """The quarter is guaranteed whatever the limit is; the fraction may grow up to the limit."""
    allocation = gpu_allocation(V100, DeviceShare(index=0, milli=250), options)

    assert (allocation.guaranteed_mib, allocation.limit_mib) == (8127, wanted)


def test_the_limits_file() -> None:
    """Version, tenant and mode, a line for each GPU in bytes, and an end that marks it complete."""
    allocation = gpu_allocation(
        V100, DeviceShare(index=0, milli=250), SharingOptions(limit_milli=800, mode=ComputeMode.FAIR), pod_uid="pod-1"
    )

    assert render_limits([allocation]) == (
        "gpushare 1\ntenant pod-1\nmode fair\n"
        f"gpu GPU-a limit={26008 * MIB} guaranteed={8127 * MIB} weight=250 context=0 cap={26008 * MIB}\nend\n"
    )


def test_options_are_read_from_annotations() -> None:
    """A pod's annotations have its limit and its compute mode."""
    annotations = {labels.GPU_FRACTION_LIMIT: "0.8", labels.GPU_COMPUTE_MODE: "strict"}

    assert sharing_options(annotations) == SharingOptions(limit_milli=800, mode=ComputeMode.STRICT)


@pytest.mark.parametrize(
    "annotations",
    [{labels.GPU_FRACTION_LIMIT: "lots"}, {labels.GPU_COMPUTE_MODE: "x"}, {labels.GPU_MEMORY_LIMIT_MIB: "1G"}],
)
def test_options_that_cannot_be_parsed(annotations: dict[str, str]) -> None:
    """Invalid options are refused, not ignored: a pod would run with another limit than intended."""
    with pytest.raises(Invalid, match="cannot be read"):
        sharing_options(annotations)
