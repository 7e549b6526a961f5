"""Reading and writing amounts, durations and times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot import units


@pytest.mark.parametrize(
    ("written", "thousandths"),
    [
        (4, 4000),
        ("4", 4000),
        (0.5, 500),
        ("0.5", 500),
        (".25", 250),
        ("500m", 500),
        (0, 0),
        (2.3, 2300),
        ("1e2", 100_000),
    ],
)
def test_milli_reads_whole_and_fractional_units(written: object, thousandths: int) -> None:
    """Numbers of GPUs and cores are read in every common spelling."""
    assert units.milli(written) == thousandths


def test_fractions_add_up_exactly() -> None:
    """0.5 + 0.3 + 0.2 of a GPU fill one GPU, with nothing lost to rounding."""
    assert units.milli(0.5) + units.milli(0.3) + units.milli(0.2) == units.GPU


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("many", "must be a number such as 4 or 0.5, not 'many'"),
        (None, "must be a number such as 4 or 0.5, not None"),
        (True, "must be a number such as 4 or 0.5, not True"),
        ([1], r"must be a number such as 4 or 0.5, not \[1\]"),
        ("1_0", "must be a number"),
        ("１", "must be a number"),
        (float("nan"), "must be a number"),
        (float("inf"), "must be a number"),
        ("1e999999999", "must be a number"),
        (-1, "must not be negative, not -1"),
        (0.3333, "must have at most three decimals, not 0.3333"),
        ("0.1m", "must have at most three decimals"),
        (10**30, "is too large"),
        ("9" * 500, r"is too large: '9+\.\.\.$"),
    ],
)
def test_milli_says_what_is_wrong(written: object, complaint: str) -> None:
    """A value that is not an amount of GPUs is refused with a reason. It is never rounded and never crashes."""
    with pytest.raises(ValueError, match=complaint):
        units.milli(written)


@given(st.integers(0, 10**9))
def test_whole_units_are_read_back(count: int) -> None:
    """Thousandths that are written and read again are unchanged."""
    assert units.milli(units.whole_units(count)) == count


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("4Gi", 4 << 30),
        ("500M", 500_000_000),
        ("10GB", 10**10),
        (7, 7),
        ("1.5Gi", 3 << 29),
        ("100Mi", 100 << 20),
        ("0", 0),
    ],
)
def test_quantity_reads_both_families_of_suffixes(written: object, count: int) -> None:
    """Memory is read with Kubernetes' suffixes, also when a B follows."""
    assert units.quantity(written) == count


@pytest.mark.parametrize("written", ["lots", "", "-1", -1, None, True, "4 Gi", "1e3", "Gi", "4ki", [4]])
def test_quantity_refuses_other_values(written: object) -> None:
    """A value that is not an amount of memory is refused, with an example of one."""
    with pytest.raises(ValueError, match="must be an amount such as 512Mi or 4G"):
        units.quantity(written)


def test_quantity_has_an_upper_limit() -> None:
    """More bytes than 64 bits can count are refused."""
    with pytest.raises(ValueError, match="is too large"):
        units.quantity("99999Ei")


@given(st.integers(0, 2**63 - 1))
def test_quantity_text_is_exact(count: int) -> None:
    """An amount that is written and read again is unchanged, to the byte."""
    assert units.quantity(units.quantity_text(count)) == count


def test_quantity_text_is_short() -> None:
    """Amounts are shown with the suffix that makes them short."""
    assert [units.quantity_text(count) for count in (4 << 30, 1_500_000, 7, 0)] == ["4Gi", "1500k", "7", "0"]


@pytest.mark.parametrize(
    ("written", "seconds"), [("5s", 5), ("2m", 120), ("3h", 10_800), ("4d", 345_600), (30, 30), ("30", 30), (0, 0)]
)
def test_duration_reads_units_of_time(written: object, seconds: int) -> None:
    """Durations are read with a unit or as seconds."""
    assert units.duration(written) == seconds


@pytest.mark.parametrize("written", ["soon", "", "5 m", "1h30m", -5, "-5", 2.5, True, None, "²", "9" * 5000])
def test_duration_refuses_other_values(written: object) -> None:
    """A value that is not a duration is refused, with examples."""
    with pytest.raises(ValueError, match="must be a duration such as 30s, 5m, 2h or 1d"):
        units.duration(written)


def test_duration_has_an_upper_limit() -> None:
    """A duration that does not fit into 64 bits is refused."""
    with pytest.raises(ValueError, match="is too large"):
        units.duration("99999999999999999d")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T00:00:00", 0.0),
        ("1970-01-01t00:00:00.5z", 0.5),
        ("2026-01-31T12:00:00.123456789Z", 1769860800.123456),
        (12, 12.0),
    ],
)
def test_timestamp_reads_rfc_3339(written: object, seconds: float) -> None:
    """Times are read with any offset and any number of decimals; without an offset they are UTC."""
    assert units.timestamp(written) == seconds


@pytest.mark.parametrize("written", ["tomorrow", "", "2026", None, True, 1e300, float("nan"), 10**400, -(10**12)])
def test_timestamp_refuses_other_values(written: object) -> None:
    """A value that is not a time, or is out of range, is refused, with an example."""
    with pytest.raises(ValueError, match="must be a time such as 2026-01-31T12:00:00Z"):
        units.timestamp(written)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_000).map(lambda millis: millis / 1000))
def test_timestamp_text_is_read_back(seconds: float) -> None:
    """A time that is written and read again is unchanged, to the microsecond."""
    assert units.timestamp(units.timestamp_text(seconds)) == pytest.approx(seconds, abs=1e-5)


def test_timestamp_text_has_decimals_only_when_needed() -> None:
    """Whole seconds are written without decimals, as Kubernetes does."""
    assert units.timestamp_text(1) == "1970-01-01T00:00:01Z"
    assert units.timestamp_text(0.25) == "1970-01-01T00:00:00.250000Z"
