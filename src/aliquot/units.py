"""Quantities: integers in base units inside, the field's own spelling outside.

GPU and CPU are counted in thousandths (`Milli`), memory in bytes, GPU memory in MiB, time in seconds.
Parsing is exact (decimal, never binary floating point), so that 0.5 + 0.3 + 0.2 is one whole device.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import NewType

Milli = NewType("Milli", int)
Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)

GPU = 1000  # milli-GPU in one device
MIB = 1 << 20

# Kubernetes' suffixes, and the spelling with a B that people type ("10GB").
_SUFFIXES = {
    "": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
}  # fmt: skip
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([kKMGTPE]i?)?B?$")
_DURATION = re.compile(r"^([0-9]+)(s|m|h|d)$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def milli(value: object) -> Milli:
    """Thousandths from a number of whole units: 0.5, "0.5", 4, "500m".

    Raises ValueError for anything else, and for more than three decimals: a share that cannot be
    counted exactly is an error, not a rounding.
    """
    text = str(value).strip()
    scale = 1000
    if text.endswith("m"):
        text, scale = text[:-1], 1
    number = _decimal(text, "a number such as 4 or 0.5", value) * scale
    if number != number.to_integral_value():
        raise ValueError(f"must have at most three decimals, not {value}")
    return Milli(_whole(number, value))


def whole_units(count: int) -> int | float:
    """The shortest number of whole units: 500 -> 0.5, 4000 -> 4."""
    return count // 1000 if count % 1000 == 0 else count / 1000


def quantity(value: object) -> Bytes:
    """Bytes from "4Gi", "500M", "10GB" or a plain number."""
    found = None if isinstance(value, bool) else _QUANTITY.match(str(value).strip())
    if found is None:
        raise ValueError(f"must be an amount such as 512Mi or 4G, not {_shown(value)}")
    number = Decimal(found[1]) * _SUFFIXES[found[2] or ""]
    return Bytes(_whole(number.to_integral_value(), value))


def quantity_text(count: int) -> str:
    """The shortest exact spelling: 4294967296 -> 4Gi, 1500000 -> 1500k, 7 -> 7."""
    if count == 0:
        return "0"
    best = str(count)
    for suffix, size in _SUFFIXES.items():
        if suffix not in ("", "K") and count % size == 0 and len(f"{count // size}{suffix}") < len(best):
            best = f"{count // size}{suffix}"
    return best


def duration(value: object) -> int:
    """Seconds from "5s", "2m", "3h", "4d" or a plain number of seconds."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = str(value).strip()
    found = _DURATION.match(text)
    if found:
        return int(found[1]) * _SECONDS[found[2]]
    if text.isdigit() and not isinstance(value, bool):
        return int(text)
    raise ValueError(f"must be a duration such as 30s, 5m, 2h or 1d, not {_shown(value)}")


def timestamp(value: object) -> float:
    """Seconds since 1970 from RFC 3339 text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"must be a time such as 2026-01-31T12:00:00Z, not {_shown(value)}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def timestamp_text(seconds: float) -> str:
    """RFC 3339 in UTC; microseconds only when there are any."""
    moment = datetime.fromtimestamp(seconds, UTC)
    style = "%Y-%m-%dT%H:%M:%S.%fZ" if moment.microsecond else "%Y-%m-%dT%H:%M:%SZ"
    return moment.strftime(style)


def _decimal(text: str, wanted: str, value: object) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or isinstance(value, bool):
        raise ValueError(f"must be {wanted}, not {_shown(value)}")
    if number < 0:
        raise ValueError(f"must not be negative, not {value}")
    return number


def _whole(number: Decimal, value: object) -> int:
    # SQLite, JSON readers and Go all stop at 64 bits; nothing real comes near.
    if number >= 2**63:
        raise ValueError(f"is too large: {value}")
    return int(number)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
