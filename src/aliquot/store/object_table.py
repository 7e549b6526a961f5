"""Create, update, patch and delete for the embedded drivers (memory and SQLite).

An `ObjectTable` finds and stores documents: dictionaries in memory, tables in SQLite. Each function here reads the
current document, applies `object_rules`, and writes at most once, as its last step, so a rejected write changes
nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Protocol

from aliquot.api import Json
from aliquot.errors import Conflict, Denied, Exists, Fault, Invalid, NotFound
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, ChangeType, Document
from aliquot.store.selectors import SelectableFields, selectable_fields


@dataclass(frozen=True, slots=True)
class Entry:
    """One change in the log: the document after it (for a removal: before it), and what selectors saw before it."""

    revision: int
    kind: str
    type: ChangeType
    document: Document
    was: SelectableFields | None


class ObjectTable(Protocol):
    def find(self, kind: str, namespace: str, name: str) -> Document | None: ...

    def next_revision(self) -> int: ...

    def apply(self, entry: Entry) -> None:
        """Stores or removes the document, and appends the entry to the log."""


def require(table: ObjectTable, kind: AnyKind, name: str, namespace: str) -> Document:
    document = table.find(kind.name, namespace if kind.namespaced else "", name)
    if document is None:
        raise not_found(kind, name, namespace)
    return document


def not_found(kind: AnyKind, name: str, namespace: str) -> NotFound:
    scope = f" in namespace {namespace!r}" if kind.namespaced else ""
    return NotFound(f"{kind.singular} {name!r} not found{scope}")


def create(table: ObjectTable, kind: AnyKind, document: Document, now: float) -> Document:
    data = object_rules.created(kind, document.data, uid=str(uuid.uuid4()), now=now)
    name, namespace = data["metadata"]["name"], data["metadata"].get("namespace", "")
    if kind.namespaced:
        _check_namespace(table, kind, name, namespace)
    if table.find(kind.name, namespace, name) is not None:
        raise Exists(f"{kind.singular} {name!r} already exists", hint="choose another name, or change the one there is")
    return _put(table, kind, "ADDED", data, None)


def update(table: ObjectTable, kind: AnyKind, document: Document, *, status: bool) -> Document:
    object_rules.check_name_and_namespace(kind, document.data.get("metadata") or {})
    old = require(table, kind, document.name, document.namespace)
    return _apply(table, kind, old, object_rules.changed(kind, old.data, document.data, status=status))


def patch(
    table: ObjectTable, kind: AnyKind, name: str, namespace: str, change: Json, *, version: str, status: bool
) -> Document:
    old = require(table, kind, name, namespace)
    new = object_rules.merged(old.data, change)
    meta = new.get("metadata") or {}
    # Checked before the version, as on Kubernetes: this patch is wrong for every version.
    if (meta.get("name"), meta.get("namespace") or "") != (old.name, old.namespace):
        raise Invalid.because(kind.singular, [Fault("metadata", "name and namespace cannot be changed")])
    if version and version != old.version:
        raise Conflict(f"{kind.singular} {name!r} has changed since version {version}", hint="read it again")
    if kind.name == "Pod" and (change.get("spec") or {}).get("nodeName"):
        object_rules.check_binding(change)
        if node := (old.data.get("spec") or {}).get("nodeName"):
            # Even for the same node: the caller must learn that the pod was bound before.
            raise Conflict(f"pod {name!r} is already assigned to node {node!r}")
    expected = (change.get("metadata") or {}).get("resourceVersion")
    new["metadata"] = {**(new.get("metadata") or {}), "resourceVersion": expected or old.version}
    return _apply(table, kind, old, object_rules.changed(kind, old.data, new, status=status))


def delete(
    table: ObjectTable,
    kind: AnyKind,
    name: str,
    namespace: str,
    *,
    version: str,
    uid: str,
    grace_seconds: int | None,
    now: float,
) -> bool:
    old = require(table, kind, name, namespace)
    if (version and version != old.version) or (uid and uid != old.uid):
        raise Conflict(f"{kind.singular} {name!r} has changed since it was read", hint="read it again")
    outcome = object_rules.deleted(kind, old.data, grace_seconds=grace_seconds, now=now)
    _apply(table, kind, old, outcome)
    return isinstance(outcome, object_rules.Gone)


def _apply(table: ObjectTable, kind: AnyKind, old: Document, outcome: object_rules.Outcome) -> Document:
    if outcome is None:
        return old
    if isinstance(outcome, object_rules.Gone):
        _put(table, kind, "DELETED", old.data, selectable_fields(kind, old.data))
        return object_rules.versioned(kind, outcome.last, old.version)  # the removed object has no newer version
    return _put(table, kind, "MODIFIED", outcome, selectable_fields(kind, old.data))


def _put(table: ObjectTable, kind: AnyKind, type_: ChangeType, data: Json, was: SelectableFields | None) -> Document:
    revision = table.next_revision()
    document = object_rules.versioned(kind, data, str(revision))
    table.apply(Entry(revision, kind.name, type_, document, was))
    return document


def _check_namespace(table: ObjectTable, kind: AnyKind, name: str, namespace: str) -> None:
    document = table.find("Namespace", "", namespace)
    if document is None:
        raise NotFound(f"namespace {namespace!r} not found", hint="create its project first")
    if document.metadata.get("deletionTimestamp"):
        raise Denied(f"{kind.singular} {name!r} cannot be created: namespace {namespace!r} is being deleted")


def key_of(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.document.namespace, entry.document.name
