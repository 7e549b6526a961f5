"""Strict readers of file fields: they report every fault with its path, and guess nothing.

    FieldPath      a position in the file; its text is built only when there is a fault
    Field          one field: its Python name, the reader of its value, and whether null is a value
    read_object    reads an object by its table of fields; an unknown field is a fault

A reader is a function `(value, path, key) -> value` that raises `InvalidValue` with the condition that does not hold.
No validation library: files hold tens of thousands of workloads, and we choose how paths are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aliquot import units
from aliquot.errors import Fault

LONGEST_NAME = 253
_PLAIN_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")


class InvalidValue(Exception):
    """The condition that a value does not satisfy."""


class FieldPath:
    """One position in a file. All positions of a file share one list of faults."""

    __slots__ = ("faults", "key", "parent")

    def __init__(self, parent: FieldPath | None = None, key: str | int = "", faults: list[Fault] | None = None) -> None:
        self.parent, self.key = parent, key
        self.faults: list[Fault] = parent.faults if parent is not None else [] if faults is None else faults

    def at(self, *keys: str | int) -> FieldPath:
        inner = self
        for key in keys:
            inner = FieldPath(inner, key)
        return inner

    def fault(self, text: str) -> None:
        self.faults.append(Fault(self.path(), text))

    def path(self) -> str:
        if self.parent is None:
            return ""
        parent = self.parent.path()
        if isinstance(self.key, int):
            return f"{parent}[{self.key}]"
        if not _PLAIN_KEY.match(self.key):
            return f"{parent}[{describe(self.key)}]"
        return f"{parent}.{self.key}" if parent else self.key


Reader = Callable[[Any, FieldPath, Any], Any]


class Field(NamedTuple):
    name: str
    read: Reader
    # Whether null is a value of its own; otherwise null means the same as leaving the field out.
    null: bool = False


Fields = Mapping[str, Field]


def read_object(data: Any, fields: Fields, path: FieldPath, required: tuple[str, ...] = ("name",)) -> dict[str, Any]:
    """The values of an object by Python name, without the fields that have a fault."""
    if type(data) is not dict:
        path.fault(f"must be an object, not {describe(data)}")
        return {}
    values: dict[str, Any] = {}
    for key, value in data.items():
        field = fields.get(key)
        if field is None:
            path.at(str(key)).fault("is not a field here; there are " + ", ".join(fields))
        elif value is None:
            if field.null:
                values[field.name] = None
        else:
            try:
                values[field.name] = field.read(value, path, key)
            except (InvalidValue, ValueError) as exc:
                path.at(key).fault(str(exc))
    for key in required:
        if data.get(key) is None:
            path.at(key).fault("is required")
    return values


def object_of(
    fields: Fields, make: Callable[..., Any] = dict, required: tuple[str, ...] = (), all_valid: bool = False
) -> Reader:
    """Reads an object inside an object. It is made from its valid fields, so that later checks can look at them. The
    value is None when a required field is invalid, or (`all_valid`) any field."""
    required_names = [fields[key].name for key in required]

    def read(value: Any, path: FieldPath, key: Any) -> Any:
        inner = path.at(key)
        before = len(inner.faults)
        values = read_object(value, fields, inner, required)
        if len(inner.faults) > before and (all_valid or not all(name in values for name in required_names)):
            return None
        return make(**values)

    return read


def list_of(read: Reader) -> Reader:
    def read_list(value: Any, path: FieldPath, key: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise InvalidValue(f"must be a list, not {describe(value)}")
        inner = path.at(key)
        values = []
        for index, item in enumerate(value):
            try:
                values.append(read(item, inner, index))
            except (InvalidValue, ValueError) as exc:
                inner.at(index).fault(str(exc))
        return tuple(values)

    return read_list


def map_of(read: Reader) -> Reader:
    """Reads an object with free keys."""

    def read_map(value: Any, path: FieldPath, key: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise InvalidValue(f"must be an object, not {describe(value)}")
        inner = path.at(key)
        values = {}
        for name, item in value.items():
            try:
                values[text(name, inner, name)] = read(item, inner, name)
            except (InvalidValue, ValueError) as exc:
                inner.at(str(name)).fault(str(exc))
        return values

    return read_map


def text(value: Any, path: FieldPath, key: Any) -> str:
    if type(value) is not str:
        hint = ": put it in quotes" if isinstance(value, (int, float)) else ""
        raise InvalidValue(f"must be text, not {describe(value)}{hint}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidValue("must be text that can be written as UTF-8")  # JSON can write lone surrogates
    return value


def name(value: Any, path: FieldPath, key: Any) -> str:
    given = text(value, path, key)
    if not given or len(given) > LONGEST_NAME:
        raise InvalidValue(f"must be 1 to {LONGEST_NAME} characters long, not {len(given)}")
    if not given.isprintable() and any(ord(char) < 32 or 127 <= ord(char) < 160 for char in given):
        raise InvalidValue("must not contain control characters")
    return given


def flag(value: Any, path: FieldPath, key: Any) -> bool:
    if type(value) is not bool:
        raise InvalidValue(f"must be true or false, not {describe(value)}")
    return value


def choice(*words: str) -> Reader:
    def read(value: Any, path: FieldPath, key: Any) -> str:
        if type(value) is not str or value not in words:
            raise InvalidValue(f"must be {', '.join(words[:-1])} or {words[-1]}, not {describe(value)}")
        return value

    return read


def whole(least: int | None = 0, most: int = 1 << 40) -> Reader:
    def read(value: Any, path: FieldPath, key: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise InvalidValue(f"must be a whole number, not {describe(value)}")
        if least is not None and value < least:
            raise InvalidValue(f"must be >= {least}")
        if abs(value) > most:
            raise InvalidValue(f"must be <= {most}")
        return value

    return read


def number(least: float | None = 0) -> Reader:
    def read(value: Any, path: FieldPath, key: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise InvalidValue(f"must be a number, not {describe(value)}")
        if least is not None and value < least:
            raise InvalidValue(f"must be >= {least:g}")
        return float(value)

    return read


def milli(value: Any, path: FieldPath, key: Any) -> int:
    """A number of GPUs or cores in thousandths, exactly."""
    if type(value) is int and 0 <= value < 1 << 40:
        return value * 1000
    _not_negative(value)
    return units.milli(value)


def size(value: Any, path: FieldPath, key: Any) -> int:
    """Bytes, from a number or a Kubernetes quantity."""
    _not_negative(value)
    return units.quantity(value)


def _not_negative(value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        raise InvalidValue("must be >= 0")


def time_value(value: Any, path: FieldPath, key: Any) -> float | str:
    """Seconds relative to now, or an absolute time. That stays text, because `now` may follow later in the file."""
    if type(value) in (int, float):
        return number(None)(value, path, key)  # type: ignore[no-any-return]
    units.timestamp(text(value, path, key))
    return str(value)


def describe(value: Any) -> str:
    """A value as a message shows it: short, even for a large one."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    described = repr(value) if isinstance(value, str) else str(value)
    return described if len(described) <= 60 else described[:57] + "..."
