"""What every kind of object shares: how it is written down, its metadata, and its way between JSON and Python.

A type is declared once, as a frozen slotted dataclass (`@record`), and used three ways:

    decode   JSON -> object, checked: every fault at once, each with its path (`spec.quota.gpu`)
    encode   object -> JSON, sparse: what equals its default is left out
    schema   JSON Schema, OpenAPI and the custom resources' schemas (see schema.py)

On the wire an object looks as on Kubernetes: camelCase, `metadata.resourceVersion`, RFC 3339 times. Inside it has
integers in base units and seconds. The string under a field is its documentation: `kubectl explain` and the API
reference show it, so it is written for users.

Decoding has two strengths. At the edge (`strict=True`) an unknown field is an error, because it is a typing mistake.
From a store it is ignored, because a newer version or another program wrote it; nothing we write back removes it,
since stores are changed by merge patch (see store.base).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from aliquot import units


def _as_milli(value: object) -> int:
    return units.milli(value)


def _as_bytes(value: object) -> int:
    return units.quantity(value)


def _as_duration(value: object) -> int:
    return units.duration(value)


def _as_time(value: object) -> float:
    return units.timestamp(value)


# `x-crd` is what only the custom resources' schemas say (see schema.py). Kubernetes' own `multipleOf` refuses 4.004
# and 0, so the rule is spelled out, with room for binary fractions.
_OFF = "self * 1000.0 - double(int(self * 1000.0 + 0.5))"


THREE_DECIMALS = {"rule": f"{_OFF} < 0.00001 && {_OFF} > -0.00001", "message": "must have at most three decimals"}


# A number of GPUs or cores; thousandths inside.
Milli = Annotated[
    int,
    BeforeValidator(_as_milli),
    PlainSerializer(units.whole_units, return_type=int | float),
    WithJsonSchema({"type": "number", "minimum": 0, "x-crd": {"x-kubernetes-validations": [THREE_DECIMALS]}}),
]


# An amount of memory; bytes inside.
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


# A length of time; seconds inside. Reads "5m", writes seconds.
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


# A moment; seconds since 1970 inside.
Time = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(units.timestamp_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


_INT64 = 2**63 - 1  # what Go, SQLite and most readers of JSON stop at


Count = Annotated[int, Field(ge=0, le=_INT64)]


Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]


Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


Int64 = Annotated[int, Field(ge=-_INT64, le=_INT64)]


# RFC 1123 label, as names of pods, projects and services must be.
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


Text = Annotated[str, Field(max_length=4096)]


# Text that many objects have in common (a namespace, an image, a reason): kept in memory once.
Interned = Annotated[str, AfterValidator(sys.intern)]


Strings = tuple[Interned, ...]


Labels = Mapping[Interned, str]


def _micro_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# Kubernetes reads these times only with exactly six decimals.
MicroTime = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(_micro_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def _as_grace(value: object) -> int:
    return -1 if value in (-1, "-1", "never") else units.duration(value)


# A duration, or -1 for "never": the spelling that scenario files and the platforms before us have.
DurationOrNever = Annotated[
    int,
    BeforeValidator(_as_grace),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": -1,
            "pattern": r"^(-1|never|[0-9]+[smhd]?)$",
        }
    ),
]


JsonMap = Mapping[str, Any]


class _Nothing(dict[str, Any]):
    """An empty mapping that stays empty. It has a hash, because pydantic copies defaults that have none."""

    def __hash__(self) -> int:  # type: ignore[override]  # dict has none
        return 0

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("shared by all records: make a new mapping")

    def __reduce__(self) -> Any:
        return _nothing, ()


# One shared empty mapping for every field that has none: an object costs what it says, not what it could say.
EMPTY_MAP: Any = _Nothing()


def _nothing() -> Any:
    return EMPTY_MAP
