"""Label and field selectors, as Kubernetes spells them.

    labels   app=web, app!=web, app==web, app in (a, b), app notin (a, b), app, !app     joined by commas
    fields   metadata.name=x, status.phase!=Running                                      joined by commas

What a selector looks at is an object's *marks*: its labels and its selectable fields. They are small, so the watch log
keeps the marks an object had before each change and can tell whether it entered or left a selection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aliquot.api import Json, Kind
from aliquot.errors import Fault, Invalid
from aliquot.store.driver import Document

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"^(?P<key>{_KEY})\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(rf"^(?P<key>{_KEY})\s*(?P<sign>==|=|!=)\s*(?P<value>[^=!,()]*)$")
_THERE = re.compile(rf"^(?P<none>!?)\s*(?P<key>{_KEY})$")
_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
ALWAYS_SELECTABLE = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class Marks:
    """What selectors see of an object."""

    labels: dict[str, str]
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: the key has one of the values (or none of them, when `negated`)."""

    key: str
    values: frozenset[str] | None  # None: any value will do
    negated: bool = False

    @property
    def only(self) -> tuple[str, ...]:
        """The one text the key must have, if there is exactly one and it is not empty."""
        wanted = () if self.negated or self.values is None or len(self.values) > 1 else tuple(self.values)
        return tuple(value for value in wanted if value)

    def matches(self, marks: dict[str, str]) -> bool:
        value = marks.get(self.key)
        found = value is not None and (self.values is None or value in self.values)
        return found is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    labels: tuple[Term, ...] = ()
    fields: tuple[Term, ...] = ()

    def matches(self, marks: Marks) -> bool:
        return all(term.matches(marks.labels) for term in self.labels) and all(
            term.matches(marks.fields) for term in self.fields
        )

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def hints(self) -> list[bytes]:
        """Bytes that every matching document must contain in its stored form: a cheap first sieve."""
        pairs = [(term.key, term) for term in self.labels]
        pairs += [(term.key.rpartition(".")[2], term) for term in self.fields if not _may_be_bare(term)]
        return [_stored(key, value) for key, term in pairs for value in term.only]


def _stored(key: str, value: str) -> bytes:
    return Document({key: value}).raw[1:-1]


def _may_be_bare(term: Term) -> bool:
    """Whether the value could be a number or a truth value, which JSON writes without quotes."""
    return any(value in ("true", "false") or value[:1].isdigit() or value[:1] == "-" for value in term.values or ())


def marks_of(kind: Kind[Any], data: Json) -> Marks:
    fields = {path: _at(data, path) for path in (*ALWAYS_SELECTABLE, *kind.selectable_fields)}
    return Marks(dict(data["metadata"].get("labels") or {}), fields)


def parse(kind: Kind[Any], labels: str = "", fields: str = "") -> Selector:
    """Both selectors; `Invalid` names the part that cannot be read or the field that cannot be selected."""
    return Selector(
        tuple(_label_term(part) for part in _parts(labels)), tuple(_field_term(kind, part) for part in _parts(fields))
    )


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts = [part.strip() for part in re.split(r",(?![^()]*\))", text)]
    return [] if parts == [""] else parts


def _label_term(part: str) -> Term:
    if found := _SET.match(part):
        values = frozenset(value.strip() for value in found["values"].split(","))
        if all(_VALUE.match(value) for value in values):
            return Term(found["key"], values, negated=found["word"] == "notin")
    elif found := _EQUAL.match(part):
        if _VALUE.match(found["value"].strip()):
            return Term(found["key"], frozenset([found["value"].strip()]), negated=found["sign"] == "!=")
    elif found := _THERE.match(part):
        return Term(found["key"], None, negated=bool(found["none"]))
    raise Invalid.because(
        "label selector",
        [Fault("labelSelector", f"cannot read {part!r}")],
        hint="write app=web, app!=web or app in (a, b)",
    )


def _field_term(kind: Kind[Any], part: str) -> Term:
    found = _EQUAL.match(part)
    if found is None:
        raise Invalid.because(
            "field selector", [Fault("fieldSelector", f"cannot read {part!r}")], hint="write metadata.name=x"
        )
    allowed = (*ALWAYS_SELECTABLE, *kind.selectable_fields)
    if found["key"] not in allowed:
        raise Invalid.because(
            "field selector",
            [Fault("fieldSelector", f"{found['key']} cannot be selected")],
            hint=f"{kind.plural} can be selected by {', '.join(allowed)}",
        )
    return Term(found["key"], frozenset([found["value"].strip()]), negated=found["sign"] == "!=")


def _at(data: Json, path: str) -> str:
    """The value at a dotted path as text; what is not there is empty, as on Kubernetes."""
    value: Any = data
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
