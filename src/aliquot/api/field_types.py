"""Types of fields: quantities, times, bounded integers and strings, with their validation and JSON Schema.

In Python a quantity is an integer in its base unit and a time is in seconds; on the wire both are written as users
write them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from aliquot import units


def _as_milli(value: object) -> int:
    return units.milli(value)


def _as_bytes(value: object) -> int:
    return units.quantity(value)


def _as_duration(value: object) -> int:
    return units.duration(value)


def _as_duration_or_never(value: object) -> int:
    return -1 if value in (-1, "-1", "never") else units.duration(value)


def _as_time(value: object) -> float:
    return units.timestamp(value)


def _micro_time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# `x-crd` applies only to the schemas of custom resources (see crds.py). Kubernetes' own `multipleOf` refuses 4.004 and
# 0, so the rule is a CEL expression with a tolerance for binary fractions.
_ROUNDING_ERROR = "self * 1000.0 - double(int(self * 1000.0 + 0.5))"
THREE_DECIMALS = {
    "rule": f"{_ROUNDING_ERROR} < 0.00001 && {_ROUNDING_ERROR} > -0.00001",
    "message": "must have at most three decimals",
}

# A number of GPUs or cores. In Python: thousandths.
Milli = Annotated[
    int,
    BeforeValidator(_as_milli),
    PlainSerializer(units.whole_units, return_type=int | float),
    WithJsonSchema({"type": "number", "minimum": 0, "x-crd": {"x-kubernetes-validations": [THREE_DECIMALS]}}),
]
# An amount of memory. In Python: bytes.
Bytes = Annotated[
    int,
    BeforeValidator(_as_bytes),
    PlainSerializer(units.quantity_text, return_type=str),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "pattern": r"^([0-9]+(\.[0-9]+)?|\.[0-9]+)(k|[KMGTPE]i?)?B?$",
        }
    ),
]
# A length of time. In Python: seconds. It reads "5m" and writes seconds.
Duration = Annotated[
    int,
    BeforeValidator(_as_duration),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 0,
            "pattern": r"^[0-9]+[smhd]?$",
        }
    ),
]
# A duration, or -1 for "never", as in scenario files and in Run:ai.
DurationOrNever = Annotated[
    int,
    BeforeValidator(_as_duration_or_never),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": -1,
            "pattern": r"^(-1|never|[0-9]+[smhd]?)$",
        }
    ),
]
# A point in time. In Python: seconds since 1970.
Time = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(units.timestamp_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
# A point in time with microseconds. Kubernetes reads these only with exactly six decimals.
MicroTime = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(_micro_time_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
_INT64 = 2**63 - 1  # the largest integer of Go, SQLite and most JSON parsers
Count = Annotated[int, Field(ge=0, le=_INT64)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-_INT64, le=_INT64)]
# RFC 1123 label, as names of pods, projects and services must be.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Text = Annotated[str, Field(max_length=4096)]
# Text that many objects have in common (a namespace, an image, a reason), held in memory once.
Interned = Annotated[str, AfterValidator(sys.intern)]
Strings = tuple[Interned, ...]
Labels = Mapping[Interned, str]
JsonMap = Mapping[str, Any]


class _EmptyMap(dict[str, Any]):
    """An empty mapping that stays empty. It has a hash, because pydantic copies defaults that have none."""

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none
        return 0

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("shared by all records: make a new mapping")

    def __reduce__(self) -> Any:
        return _empty_map, ()


# The default of every mapping field. One shared object keeps the memory of objects with few fields small.
EMPTY_MAP: Any = _EmptyMap()


def _empty_map() -> Any:
    return EMPTY_MAP
