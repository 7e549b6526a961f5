"""The writes of the embedded bodies, over whatever they keep objects on.

A `Shelf` finds and keeps documents; memory has one of dictionaries, SQLite one of tables. The functions here are the
whole behaviour of a write: look, apply the rules, put. Each puts at most once, last, so a refusal leaves nothing half.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Protocol

from aliquot.api import Json
from aliquot.errors import Conflict, Denied, Exists, Fault, Invalid, NotFound
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, ChangeType, Document
from aliquot.store.selectors import Marks, marks_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One change in the log: the document after it (before it, for a removal) and the marks it had until then."""

    revision: int
    kind: str
    type: ChangeType
    document: Document
    was: Marks | None


class ObjectTable(Protocol):
    def find(self, kind: str, namespace: str, name: str) -> Document | None: ...

    def next_revision(self) -> int: ...

    def keep(self, entry: Entry) -> None:
        """Store what the entry says and remember the entry itself."""


def require(shelf: ObjectTable, kind: AnyKind, name: str, namespace: str) -> Document:
    found = shelf.find(kind.name, namespace if kind.namespaced else "", name)
    if found is None:
        raise not_found(kind, name, namespace)
    return found


def not_found(kind: AnyKind, name: str, namespace: str) -> NotFound:
    place = f" in namespace {namespace!r}" if kind.namespaced else ""
    return NotFound(f"{kind.singular} {name!r} not found{place}")


def create(shelf: ObjectTable, kind: AnyKind, document: Document, now: float) -> Document:
    data = object_rules.created(kind, document.data, uid=str(uuid.uuid4()), now=now)
    name, namespace = data["metadata"]["name"], data["metadata"].get("namespace", "")
    if kind.namespaced:
        _check_namespace(shelf, kind, name, namespace)
    if shelf.find(kind.name, namespace, name) is not None:
        raise Exists(f"{kind.singular} {name!r} already exists", hint="choose another name, or change the one there is")
    return _put(shelf, kind, "ADDED", data, None)


def update(shelf: ObjectTable, kind: AnyKind, document: Document, *, status: bool) -> Document:
    object_rules.check_place(kind, document.data.get("metadata") or {})
    old = require(shelf, kind, document.name, document.namespace)
    return _apply(shelf, kind, old, object_rules.changed(kind, old.data, document.data, status=status))


def patch(
    shelf: ObjectTable, kind: AnyKind, name: str, namespace: str, change: Json, *, version: str, status: bool
) -> Document:
    old = require(shelf, kind, name, namespace)
    new = object_rules.merged(old.data, change)
    given = new.get("metadata") or {}
    # First, as on Kubernetes: no later version would make this patch right.
    if (given.get("name"), given.get("namespace") or "") != (old.name, old.namespace):
        raise Invalid.because(kind.singular, [Fault("metadata", "name and namespace cannot be changed")])
    if version and version != old.version:
        raise Conflict(f"{kind.singular} {name!r} has changed since version {version}", hint="read it again")
    if kind.name == "Pod" and (change.get("spec") or {}).get("nodeName"):
        object_rules.check_binding(change)
        if node := (old.data.get("spec") or {}).get("nodeName"):
            # Once, even to the same node: who binds must know that nobody did before.
            raise Conflict(f"pod {name!r} is already assigned to node {node!r}")
    asked = (change.get("metadata") or {}).get("resourceVersion")
    new["metadata"] = {**(new.get("metadata") or {}), "resourceVersion": asked or old.version}
    return _apply(shelf, kind, old, object_rules.changed(kind, old.data, new, status=status))


def delete(
    shelf: ObjectTable,
    kind: AnyKind,
    name: str,
    namespace: str,
    *,
    version: str,
    uid: str,
    grace_seconds: int | None,
    now: float,
) -> bool:
    old = require(shelf, kind, name, namespace)
    if (version and version != old.version) or (uid and uid != old.uid):
        raise Conflict(f"{kind.singular} {name!r} is not the one that was to be deleted", hint="read it again")
    outcome = object_rules.deleted(kind, old.data, grace_seconds=grace_seconds, now=now)
    _apply(shelf, kind, old, outcome)
    return isinstance(outcome, object_rules.Gone)


def _apply(shelf: ObjectTable, kind: AnyKind, old: Document, outcome: object_rules.Outcome) -> Document:
    if outcome is None:
        return old
    if isinstance(outcome, object_rules.Gone):
        _put(shelf, kind, "DELETED", old.data, marks_of(kind, old.data))
        return object_rules.versioned(kind, outcome.last, old.version)  # no version is of the object that is no more
    return _put(shelf, kind, "MODIFIED", outcome, marks_of(kind, old.data))


def _put(shelf: ObjectTable, kind: AnyKind, type_: ChangeType, data: Json, was: Marks | None) -> Document:
    revision = shelf.next_revision()
    document = object_rules.versioned(kind, data, str(revision))
    shelf.keep(Entry(revision, kind.name, type_, document, was))
    return document


def _check_namespace(shelf: ObjectTable, kind: AnyKind, name: str, namespace: str) -> None:
    found = shelf.find("Namespace", "", namespace)
    if found is None:
        raise NotFound(f"namespace {namespace!r} not found", hint="create its project first")
    if found.metadata.get("deletionTimestamp"):
        raise Denied(f"{kind.singular} {name!r} cannot be created: namespace {namespace!r} is being deleted")


def key_of(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.document.namespace, entry.document.name
