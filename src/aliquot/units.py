"""Quantities: integers in base units inside the program, Kubernetes' spelling in its inputs and outputs.

GPUs and CPUs are counted in thousandths (`Milli`), memory in bytes, GPU memory in MiB, time in seconds.
Parsing is exact (decimal, never binary floating point), so 0.5 + 0.3 + 0.2 is exactly one device.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import NewType

Milli = NewType("Milli", int)
Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)

GPU = 1000  # milli-GPU in one device
MIB = 1 << 20

# Kubernetes' suffixes. `_QUANTITY` also takes the B that people add ("10GB").
_SUFFIXES = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}  # fmt: skip
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(k|[KMGTPE]i?)?B?$")
# Decimal would also accept 1_0, full-width digits, and exponents that exhaust the memory.
_NUMBER = re.compile(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$", re.ASCII)
_DURATION = re.compile(r"^([0-9]{1,18})(s|m|h|d)?$", re.ASCII)
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def milli(value: object) -> Milli:
    """Thousandths from a number of whole units: 0.5, "0.5", 4, "500m".

    Raises ValueError for anything else, and for more than three decimals: an amount that cannot be counted exactly is
    an error and is not rounded.
    """
    if type(value) is int and 0 <= value <= 1 << 40:  # the common case, and fast
        return Milli(value * 1000)
    text = str(value).strip()
    scale = 1000
    if text.endswith("m"):
        text, scale = text[:-1], 1
    number = _decimal(text, "a number such as 4 or 0.5", value) * scale
    if number != number.to_integral_value():
        raise ValueError(f"must have at most three decimals, not {_shown(value)}")
    return Milli(_whole(number, value))


def whole_units(count: int) -> int | float:
    """A count of thousandths as whole units: 500 -> 0.5, 4000 -> 4."""
    return count // 1000 if count % 1000 == 0 else count / 1000


def quantity(value: object) -> Bytes:
    """Bytes from "4Gi", "500M", "10GB" or a plain number."""
    match = None if isinstance(value, bool) else _QUANTITY.match(str(value).strip())
    if match is None:
        raise ValueError(f"must be an amount such as 512Mi or 4G, not {_shown(value)}")
    number = Decimal(match[1]) * _SUFFIXES[match[2] or ""]
    return Bytes(_whole(number.to_integral_value(), value))


def exact(value: object) -> Decimal:
    """Any number or amount, also negative or fractional: -1, 0.5, "0.5", "64Gi"."""
    text = str(value).strip()
    match = None if isinstance(value, bool) else _QUANTITY.match(text.removeprefix("-"))
    if match is None:
        raise ValueError(f"must be a number or an amount such as 512Mi, not {_shown(value)}")
    number = Decimal(match[1]) * _SUFFIXES[match[2] or ""]
    return -number if text.startswith("-") else number


def quantity_text(count: int) -> str:
    """The shortest exact spelling: 4294967296 -> 4Gi, 1500000 -> 1500k, 7 -> 7."""
    if count == 0:
        return "0"
    shortest = str(count)
    for suffix, size in _SUFFIXES.items():
        if suffix not in ("", "K") and count % size == 0 and len(f"{count // size}{suffix}") < len(shortest):
            shortest = f"{count // size}{suffix}"
    return shortest


def duration(value: object) -> int:
    """Seconds from "5s", "2m", "3h", "4d" or a plain number of seconds."""
    match = None if isinstance(value, (bool, float)) else _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError(f"must be a duration such as 30s, 5m, 2h or 1d, not {_shown(value)}")
    return _whole(Decimal(match[1]) * _SECONDS[match[2]], value)


# The range of RFC 3339: the years 1 to 9999.
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0


def timestamp(value: object) -> float:
    """Seconds since 1970, from RFC 3339 text or from a number of seconds."""
    try:
        seconds = _seconds(value)
    except ValueError:
        seconds = None
    if seconds is None or not _EARLIEST <= seconds <= _LATEST:
        raise ValueError(f"must be a time such as 2026-01-31T12:00:00Z, not {_shown(value)}")
    return seconds


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(min(value, _LATEST + 1))  # an int may be too large for a float
    moment = datetime.fromisoformat(str(value).upper().replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def timestamp_text(seconds: float) -> str:
    """RFC 3339 in UTC; microseconds only when there are any."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _decimal(text: str, wanted: str, value: object) -> Decimal:
    if isinstance(value, bool) or not _NUMBER.match(text):
        raise ValueError(f"must be {wanted}, not {_shown(value)}")
    number = Decimal(text)
    if number < 0:
        raise ValueError(f"must not be negative, not {_shown(value)}")
    return number


def _whole(number: Decimal, value: object) -> int:
    # SQLite, JSON readers and Go are limited to 64 bits. No real amount comes near.
    if number >= 2**63:
        raise ValueError(f"is too large: {_shown(value)}")
    return int(number)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
