"""Label and field selectors, as Kubernetes spells them.

    labels   app=web, app!=web, app==web, app in (a, b), app notin (a, b), app, !app     joined by commas
    fields   metadata.name=x, status.phase!=Running                                      joined by commas

A selector reads only an object's labels and selectable fields (`SelectableFields`). They are small, so the watch log
stores them as they were before each change, and can tell whether the object entered or left a selection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aliquot.api import Json, Kind
from aliquot.errors import Fault, Invalid
from aliquot.store.driver import Document

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"^(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(rf"^(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>[^=!,()]*)$")
_EXISTS = re.compile(rf"^(?P<operator>!?)\s*(?P<key>{_KEY})$")
_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
ALWAYS_SELECTABLE = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class SelectableFields:
    """The part of an object that selectors read."""

    labels: dict[str, str]
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Term:
    """One requirement: the key has one of the values, or none of them when `negated`."""

    key: str
    values: frozenset[str] | None  # None: any value
    negated: bool = False

    @property
    def only(self) -> tuple[str, ...]:
        """The value the key must have, if there is exactly one and it is not empty."""
        values = () if self.negated or self.values is None or len(self.values) > 1 else tuple(self.values)
        return tuple(value for value in values if value)

    def matches(self, present: dict[str, str]) -> bool:
        value = present.get(self.key)
        matched = value is not None and (self.values is None or value in self.values)
        return matched is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    labels: tuple[Term, ...] = ()
    fields: tuple[Term, ...] = ()

    def matches(self, present: SelectableFields) -> bool:
        return all(term.matches(present.labels) for term in self.labels) and all(
            term.matches(present.fields) for term in self.fields
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def hints(self) -> list[bytes]:
        """Byte strings that the stored form of every matching document contains: a cheap prefilter."""
        pairs = [(term.key, term) for term in self.labels]
        pairs += [(term.key.rpartition(".")[2], term) for term in self.fields if not _may_be_unquoted(term)]
        return [_stored(key, value) for key, term in pairs for value in term.only]


def _stored(key: str, value: str) -> bytes:
    return Document({key: value}).raw[1:-1]


def _may_be_unquoted(term: Term) -> bool:
    """Whether the value could be a number or a boolean, which JSON writes without quotes."""
    return any(value in ("true", "false") or value[:1].isdigit() or value[:1] == "-" for value in term.values or ())


def selectable_fields(kind: Kind[Any], data: Json) -> SelectableFields:
    fields = {path: _at(data, path) for path in (*ALWAYS_SELECTABLE, *kind.selectable_fields)}
    return SelectableFields(dict(data["metadata"].get("labels") or {}), fields)


def parse(kind: Kind[Any], labels: str = "", fields: str = "") -> Selector:
    """Parses both selectors. `Invalid` names the part that cannot be parsed or the field that is not selectable."""
    return Selector(
        tuple(_label_term(part) for part in _parts(labels)), tuple(_field_term(kind, part) for part in _parts(fields))
    )


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", text)]
    return [] if parts == [""] else parts


def _label_term(part: str) -> Term:
    if match := _SET.match(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        if all(_VALUE.match(value) for value in values):
            return Term(match["key"], values, negated=match["operator"] == "notin")
    elif match := _EQUAL.match(part):
        if _VALUE.match(match["value"].strip()):
            return Term(match["key"], frozenset([match["value"].strip()]), negated=match["operator"] == "!=")
    elif match := _EXISTS.match(part):
        return Term(match["key"], None, negated=bool(match["operator"]))
    raise Invalid.because(
        "label selector",
        [Fault("labelSelector", f"cannot read {part!r}")],
        hint="write app=web, app!=web or app in (a, b)",
    )


def _field_term(kind: Kind[Any], part: str) -> Term:
    match = _EQUAL.match(part)
    if match is None:
        raise Invalid.because(
            "field selector", [Fault("fieldSelector", f"cannot read {part!r}")], hint="write metadata.name=x"
        )
    allowed = (*ALWAYS_SELECTABLE, *kind.selectable_fields)
    if match["key"] not in allowed:
        raise Invalid.because(
            "field selector",
            [Fault("fieldSelector", f"{match['key']} cannot be selected")],
            hint=f"{kind.plural} can be selected by {', '.join(allowed)}",
        )
    return Term(match["key"], frozenset([match["value"].strip()]), negated=match["operator"] == "!=")


def _at(data: Json, path: str) -> str:
    """The value at a dotted path as text, empty when it is absent, as on Kubernetes."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
