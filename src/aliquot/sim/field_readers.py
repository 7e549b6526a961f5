"""Reading a strict file: every fault is found, each with its path, and nothing is guessed.

    Place    where in the file we are; turns into a path only when there is a fault to tell
    Rule     one field: the name it gets, how its value is read, and what null means
    record   an object by its table of rules; a field without a rule is a fault

Values are read by small functions `(value, place, key) -> value` that raise `Bad` with what must hold. This is done by
hand and not with a validation library because files hold tens of thousands of workloads, and the paths are ours.
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


class Bad(Exception):
    """What must hold of a value, and does not."""


class Place:
    """One position in a file."""

    __slots__ = ("faults", "key", "parent")

    def __init__(self, parent: Place | None = None, key: str | int = "", faults: list[Fault] | None = None) -> None:
        self.parent, self.key = parent, key
        self.faults: list[Fault] = parent.faults if parent is not None else [] if faults is None else faults

    def at(self, *keys: str | int) -> Place:
        place = self
        for key in keys:
            place = Place(place, key)
        return place

    def fault(self, text: str) -> None:
        self.faults.append(Fault(self.path(), text))

    def path(self) -> str:
        if self.parent is None:
            return ""
        before = self.parent.path()
        if isinstance(self.key, int):
            return f"{before}[{self.key}]"
        if not _PLAIN_KEY.match(self.key):
            return f"{before}[{shown(self.key)}]"
        return f"{before}.{self.key}" if before else self.key


Parse = Callable[[Any, Place, Any], Any]


class Rule(NamedTuple):
    name: str
    parse: Parse
    # Whether null is a value of its own; otherwise it says the same as leaving the field out.
    null: bool = False


Table = Mapping[str, Rule]


def record(data: Any, table: Table, place: Place, required: tuple[str, ...] = ("name",)) -> dict[str, Any]:
    """The fields of an object by their own names; those with a fault are left out."""
    if type(data) is not dict:
        place.fault(f"must be an object, not {shown(data)}")
        return {}
    values: dict[str, Any] = {}
    for key, value in data.items():
        rule = table.get(key)
        if rule is None:
            place.at(str(key)).fault("is not a field here; there are " + ", ".join(table))
        elif value is None:
            if rule.null:
                values[rule.name] = None
        else:
            try:
                values[rule.name] = rule.parse(value, place, key)
            except (Bad, ValueError) as exc:
                place.at(key).fault(str(exc))
    for key in required:
        if data.get(key) is None:
            place.at(key).fault("is required")
    return values


def nested(table: Table, make: Callable[..., Any] = dict, required: tuple[str, ...] = (), sound: bool = False) -> Parse:
    """An object inside an object. Made from its sound parts, for further checks to look at; None when it lacks what it
    cannot be without, or (`sound`) has any fault."""
    wanted = [table[key].name for key in required]

    def parse(value: Any, place: Place, key: Any) -> Any:
        inner = place.at(key)
        before = len(inner.faults)
        values = record(value, table, inner, required)
        if len(inner.faults) > before and (sound or not all(name in values for name in wanted)):
            return None
        return make(**values)

    return parse


def listed(parse: Parse) -> Parse:
    def parse_all(value: Any, place: Place, key: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Bad(f"must be a list, not {shown(value)}")
        inner = place.at(key)
        found = []
        for index, each in enumerate(value):
            try:
                found.append(parse(each, inner, index))
            except (Bad, ValueError) as exc:
                inner.at(index).fault(str(exc))
        return tuple(found)

    return parse_all


def mapped(parse: Parse) -> Parse:
    """An object whose keys are names."""

    def parse_all(value: Any, place: Place, key: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Bad(f"must be an object, not {shown(value)}")
        inner = place.at(key)
        found = {}
        for name, each in value.items():
            try:
                found[text(name, inner, name)] = parse(each, inner, name)
            except (Bad, ValueError) as exc:
                inner.at(str(name)).fault(str(exc))
        return found

    return parse_all


def text(value: Any, place: Place, key: Any) -> str:
    if type(value) is not str:
        hint = ": put it in quotes" if isinstance(value, (int, float)) else ""
        raise Bad(f"must be text, not {shown(value)}{hint}")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise Bad("must be text that can be written as UTF-8")  # JSON can spell halves of characters
    return value


def name(value: Any, place: Place, key: Any) -> str:
    found = text(value, place, key)
    if not found or len(found) > LONGEST_NAME:
        raise Bad(f"must be 1 to {LONGEST_NAME} characters long, not {len(found)}")
    if not found.isprintable() and any(ord(char) < 32 or 127 <= ord(char) < 160 for char in found):
        raise Bad("must not contain control characters")
    return found


def flag(value: Any, place: Place, key: Any) -> bool:
    if type(value) is not bool:
        raise Bad(f"must be true or false, not {shown(value)}")
    return value


def choice(*words: str) -> Parse:
    def parse(value: Any, place: Place, key: Any) -> str:
        if type(value) is not str or value not in words:
            raise Bad(f"must be {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}")
        return value

    return parse


def whole(least: int | None = 0, most: int = 1 << 40) -> Parse:
    def parse(value: Any, place: Place, key: Any) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise Bad(f"must be a whole number, not {shown(value)}")
        if least is not None and value < least:
            raise Bad(f"must be >= {least}")
        if abs(value) > most:
            raise Bad(f"must be <= {most}")
        return value

    return parse


def number(least: float | None = 0) -> Parse:
    def parse(value: Any, place: Place, key: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise Bad(f"must be a number, not {shown(value)}")
        if least is not None and value < least:
            raise Bad(f"must be >= {least:g}")
        return float(value)

    return parse


def milli(value: Any, place: Place, key: Any) -> int:
    """Thousandths of a GPU or core, exactly."""
    if type(value) is int and 0 <= value < 1 << 40:
        return value * 1000
    _not_negative(value)
    return units.milli(value)


def size(value: Any, place: Place, key: Any) -> int:
    """Bytes, from a number or a Kubernetes quantity."""
    _not_negative(value)
    return units.quantity(value)


def _not_negative(value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        raise Bad("must be >= 0")


def moment(value: Any, place: Place, key: Any) -> float | str:
    """Seconds relative to now, or an absolute time (kept as text: what now is may stand further down)."""
    if type(value) in (int, float):
        return number(None)(value, place, key)  # type: ignore[no-any-return]
    units.timestamp(text(value, place, key))
    return str(value)


def shown(value: Any) -> str:
    """A value in a message: short, and never somebody's whole file."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    said = repr(value) if isinstance(value, str) else str(value)
    return said if len(said) <= 60 else said[:57] + "..."
