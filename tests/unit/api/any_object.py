"""Hypothesis strategies for valid objects of any type, derived from the types."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from aliquot.api import Metadata, Terms, Weights
from aliquot.api.amounts import WeightsOrNumber
from aliquot.api.compute import Gpu, Portion
from aliquot.api.field_types import Bytes, Duration, DurationOrNever, MicroTime, Milli, Time
from aliquot.api.policy import Bound
from aliquot.api.queue import Pools
from aliquot.api.serialization import type_hints_of

WORDS = st.text("abcdefghij-/. 0123456789éß✓", max_size=12)
KEYS = st.from_regex(r"[a-z][a-z0-9]{0,6}(/[a-z]{1,4})?", fullmatch=True)
SECONDS = st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1_000_000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)

_SPECIAL: list[tuple[Any, Any]] = [
    (Milli, lambda: st.integers(0, 10_000_000)),
    (Gpu, lambda: st.integers(0, 1000) | st.integers(1, 64).map(lambda count: count * 1000)),
    (Portion, lambda: st.integers(0, 1000)),
    (Bytes, lambda: st.integers(0, 1 << 60)),
    (Duration, lambda: st.integers(0, 10_000_000)),
    (DurationOrNever, lambda: st.integers(-1, 10_000_000)),
    (Time, lambda: SECONDS),
    (MicroTime, lambda: SECONDS),
    (Bound, lambda: st.integers(-5, 100) | st.sampled_from(["0.5", "512Mi", "-1.25"])),
    (WeightsOrNumber, lambda: values(Weights)),
    (Pools, lambda: st.dictionaries(st.from_regex(r"[a-c]{1,3}", fullmatch=True), values(Terms), max_size=2)),
]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Valid values of a field type."""
    for special, make in _SPECIAL:
        if hint == special:
            strategy: st.SearchStrategy[Any] = make()
            return strategy
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _bounded(args[0], args[1:])
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values(args[0]), max_size=2, unique_by=_key).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(KEYS, values(args[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        return st.deferred(lambda: records(typing.cast(type, hint)))
    return {
        str: WORDS,
        bool: st.booleans(),
        int: st.integers(-(2**31), 2**31 - 1),
        float: st.integers(-1000, 1000).map(lambda number: number / 4),
        type(None): st.none(),
        Any: JSON,
    }[hint]


def records(cls: type) -> st.SearchStrategy[Any]:
    """Objects of a record type; about half of the optional fields are left at their defaults."""
    hints = type_hints_of(cls)
    required = {f.name: values(hints[f.name]) for f in dataclasses.fields(cls) if _is_required(f)}
    optional = {f.name: values(hints[f.name]) for f in dataclasses.fields(cls) if not _is_required(f)}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: cls(**fields))


def kind_objects(cls: type) -> st.SearchStrategy[Any]:
    """Objects of a kind as a user writes them: with a name and labels, without fields that the store sets."""
    labels = st.dictionaries(KEYS, st.from_regex(r"[a-z0-9]{0,5}", fullmatch=True), max_size=2)
    metadata = st.builds(Metadata, name=st.from_regex(r"[a-z][a-z0-9]{0,20}", fullmatch=True), labels=labels)
    hints = type_hints_of(cls)
    rest = {f.name: values(hints[f.name]) for f in dataclasses.fields(cls) if f.name != "metadata"}
    return st.fixed_dictionaries({"metadata": metadata, **rest}).map(lambda fields: cls(**fields))


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _key(item: Any) -> Any:
    return getattr(item, "name", getattr(item, "type", repr(item)))


def _bounded(base: Any, annotations: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    constraints = [
        constraint
        for annotation in annotations
        for constraint in (annotation.metadata if isinstance(annotation, FieldInfo) else [annotation])
    ]
    pattern = next((each.pattern for each in constraints if getattr(each, "pattern", None)), None)
    if pattern:
        longest = next((each.max_length for each in constraints if isinstance(each, MaxLen)), 200)
        return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= min(longest, 200))
    low: Any = next((each.ge for each in constraints if isinstance(each, Ge)), None)
    above: Any = next((each.gt for each in constraints if isinstance(each, Gt)), None)
    high: Any = next((each.le for each in constraints if isinstance(each, Le)), None)
    if base is int:
        return st.integers(low, high)
    if base is float:
        least = low if low is not None else above
        return st.integers(int((least or 0) * 4) + 1, int((100 if high is None else high) * 4)).map(lambda n: n / 4)
    if base is str and any(isinstance(each, MinLen) for each in constraints):
        return WORDS.filter(bool)
    return values(base)
