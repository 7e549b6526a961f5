"""The edge: what a write must pass before it reaches the store, and in what form it is kept.

Objects of our own kinds are stored in canonical form: checked, unknown fields refused, defaults left out. Objects of
Kubernetes' own kinds are checked too, but kept as they came, because Kubernetes knows more of their fields than we do.
"""

from __future__ import annotations

from typing import Any

from aliquot.api import KINDS, check_name, decode, to_json
from aliquot.api.base import Json
from aliquot.errors import Conflict, Fault, Invalid, NotFound
from aliquot.labels import DEVICES, EVICTION_RECORD, NOMINATION, namespace_of, project_of
from aliquot.store.driver import AnyKind, Document, StoreDriver

# Which field of which kind refers to an object by name: (referred kind, referring kind, path, is it a map or list).
_REFERENCES = (
    ("Department", "Project", ("spec", "department")),
    ("NodePool", "Project", ("spec", "pools")),
    ("NodePool", "Department", ("spec", "pools")),
    ("NodePool", "SchedulingPolicy", ("spec", "pools")),
    ("User", "Token", ("spec", "user")),
)
# References that must exist when they are made. Pools may come later than the quota that speaks of them.
_MUST_EXIST = (("Project", ("spec", "department"), "Department"), ("Token", ("spec", "user"), "User"))
_KEPT = {
    ("NodePool", "default"): "every node without another pool is in it",
    ("Department", "default"): "every project without another department is in it",
}
_SHOWN = 5  # names in an error message


def admitted(kind: AnyKind, data: Json, *, name: str = "", namespace: str = "", fresh: bool) -> Document:
    """The document to store; `Invalid` with every fault. `fresh`: nobody else wrote any of it."""
    _check_envelope(kind, data, name, namespace)
    metadata = {**data["metadata"]}
    if namespace:
        metadata.setdefault("namespace", namespace)
    data = {"apiVersion": kind.api_version, "kind": kind.name, **data, "metadata": metadata}
    typed = decode(kind.type, _without_foreign(data), strict=kind.ours or fresh, what=kind.word)
    if fresh:
        check_name(kind, metadata["name"])
    return Document(to_json(typed)) if kind.ours else Document(data)


# Fields that only the platform and its administrators write.
TRUSTED = {
    "Pod": (
        ("spec", "nodeName"),
        *(("metadata", "annotations", mark) for mark in (DEVICES, EVICTION_RECORD, NOMINATION)),
    ),
    "Workload": (("spec", "subject"),),
}


def trusted(kind: AnyKind, document: Document | None) -> tuple[Any, ...]:
    """What an object says in those fields."""
    paths = TRUSTED.get(kind.name, ())
    return tuple((_at(document.data, path) or None) if document else None for path in paths)


def signed(kind: AnyKind, document: Document, subject: str) -> Document:
    """A new workload carries who really submitted it."""
    if kind.name != "Workload" or _at(document.data, ("spec", "subject")):
        return document
    return Document({**document.data, "spec": {**(document.data.get("spec") or {}), "subject": subject}})


async def check_references(driver: StoreDriver, kind: AnyKind, data: Json) -> None:
    """Names in an object must be those of objects that exist."""
    for referring, path, referred in _MUST_EXIST:
        if kind.name != referring:
            continue
        name = _at(data, path)
        if not name:
            continue
        try:
            await driver.get(KINDS.named(referred), str(name))
        except NotFound:
            fault = Fault(".".join(path), f"{referred.lower()} {name!r} does not exist")
            raise Invalid.because(kind.word, [fault], hint="create it first") from None


async def check_unreferenced(driver: StoreDriver, kind: AnyKind, name: str) -> None:
    """An object that others name stays until they let go."""
    if reason := _KEPT.get((kind.name, name)):
        raise Conflict(f"{kind.word} {name!r} cannot be deleted: {reason}")
    for referred, referring, path in _REFERENCES:
        if kind.name == referred:
            listing = await driver.list(KINDS.named(referring))
            _refuse(kind, name, referring, [d.name for d in listing.items if _names(_at(d.data, path), name)])
    if kind.name in ("User", "Project", "Department"):
        # A rule that outlived what it names would hold for the next one of that name.
        listing = await driver.list(KINDS.named("AccessRule"))
        _refuse(kind, name, "AccessRule", [d.name for d in listing.items if _is_about(d.data, kind, name)])
    if kind.name == "Project":
        project = await driver.get(kind, name)
        namespace = _at(project.data, ("spec", "namespace")) or namespace_of(name)
        if await _is_of(driver, namespace, name):
            listing = await driver.list(KINDS.named("Workload"), namespace)
            _refuse(kind, name, "Workload", [d.name for d in listing.items])


def _is_about(rule: Json, kind: AnyKind, name: str) -> bool:
    part = _at(rule, ("spec", "subject" if kind.name == "User" else "scope")) or {}
    kinds = ("user", "application") if kind.name == "User" else (kind.word,)
    return part.get("kind") in kinds and part.get("name") == name


async def _is_of(driver: StoreDriver, namespace: str, project: str) -> bool:
    """A project may name any namespace; what is in another's does not concern it, nor whoever deletes it."""
    try:
        found = await driver.get(KINDS.named("Namespace"), namespace)
    except NotFound:
        return False
    return project_of(found.metadata.get("labels") or {}) == project


def _refuse(kind: AnyKind, name: str, referring: str, users: list[str]) -> None:
    if not users:
        return
    shown = ", ".join(users[:_SHOWN]) + (f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else "")
    word = KINDS.named(referring).plural if len(users) > 1 else KINDS.named(referring).word
    raise Conflict(f"{kind.word} {name!r} is used by {word} {shown}", hint=f"delete or change {shown} first")


def _check_envelope(kind: AnyKind, data: Json, name: str, namespace: str) -> None:
    faults = []
    for field, expected in (("apiVersion", kind.api_version), ("kind", kind.name)):
        if data.get(field, expected) != expected:
            faults.append(Fault(field, f"must be {expected!r} here, not {data[field]!r}"))
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        faults.append(Fault("metadata", "is required"))
    else:
        if not metadata.get("name"):
            faults.append(Fault("metadata.name", "is required"))
        elif name and metadata["name"] != name:
            faults.append(Fault("metadata.name", f"must be {name!r}, as in the address"))
        if namespace and metadata.get("namespace", namespace) != namespace:
            faults.append(Fault("metadata.namespace", f"must be {namespace!r}, as in the address"))
        if metadata.get("namespace") and not kind.namespaced:
            faults.append(Fault("metadata.namespace", f"must be absent: {kind.plural} span the cluster"))
    if faults:
        raise Invalid.because(kind.word, faults)


def _without_foreign(data: Json) -> Json:
    """Metadata that Kubernetes clients send along and no type of ours has."""
    foreign = ("managedFields", "selfLink", "generateName")
    return {**data, "metadata": {key: value for key, value in data["metadata"].items() if key not in foreign}}


def _at(data: Json, path: tuple[str, ...]) -> Any:
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _names(value: Any, name: str) -> bool:
    return name in value if isinstance(value, (dict, list)) else value == name
