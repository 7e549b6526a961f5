"""What create, update and delete do to an object: the rules that the embedded drivers share.

They follow the Kubernetes API server, so that code above the store meets the same behaviour with every driver. The
functions are pure: time and ids are arguments. Each returns the new document, `None` when nothing changes, or `Gone`
when the object must be removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aliquot import units
from aliquot.api import Json, Kind
from aliquot.errors import Conflict, Fault, Invalid, TooLarge
from aliquot.store.driver import MAX_DOCUMENT, Document


@dataclass(frozen=True, slots=True)
class Gone:
    """The object must be removed. `last` is returned to the caller: the object as the write would have left it."""

    last: Json


Outcome = Json | Gone | None

_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_LABEL_NAME = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_ANNOTATIONS_LIMIT = 256 * 1024
# Metadata that the caller of a write sets, and metadata that only the store sets.
_SET_BY_CALLER = ("labels", "annotations", "finalizers", "ownerReferences")
_SET_BY_STORE = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "uid")
# The fields of a pod's spec that may change; nodeName only from empty.
_POD_MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds", "nodeName")
_DEFAULT_GRACE_SECONDS = 30


def created(kind: Kind[Any], data: Json, *, uid: str, now: float) -> Json:
    """A new object with valid metadata. Its status is dropped unless the kind is created with one."""
    sent = data.get("metadata") or {}
    check_name_and_namespace(kind, sent)
    metadata = _metadata(sent, {})
    metadata["creationTimestamp"] = units.timestamp_text(int(now))
    metadata["generation"] = 1
    metadata["uid"] = uid
    content = {key: value for key, value in data.items() if key not in ("apiVersion", "kind", "metadata")}
    if kind.has_status and not kind.status_on_create:
        content.pop("status", None)
    if kind.name == "Namespace":
        # As on Kubernetes: the finalizer goes when the namespace is empty.
        content = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return _checked(kind, metadata, content)


def changed(kind: Kind[Any], old: Json, new: Json, *, status: bool) -> Outcome:
    """The object after an update of everything but the status, or of the status only."""
    before = old["metadata"]
    sent = new.get("metadata") or {}
    _check_current(kind, before, sent)
    if sent.get("deletionTimestamp") and "deletionTimestamp" not in before:
        raise Invalid.because(kind.singular, [Fault("metadata.deletionTimestamp", "is set by a delete only")])
    if status:
        if not kind.has_status:
            raise Invalid(f"{kind.plural} have no status")
        result = {key: value for key, value in old.items() if key != "status"}
        if new.get("status") is not None:
            result["status"] = new["status"]
        return _size_checked(kind, result) if result != old else None
    metadata = _metadata(sent, before)
    content = {key: value for key, value in new.items() if key not in ("apiVersion", "kind", "metadata")}
    if kind.has_status:
        content.pop("status", None)
        if "status" in old:
            content["status"] = old["status"]
    if kind.name == "Pod":
        _check_pod(before["name"], old.get("spec") or {}, content.get("spec") or {})
    if _spec_fields(content) != _spec_fields(old):
        metadata["generation"] = before.get("generation", 0) + 1
    if "deletionTimestamp" in before:
        _check_no_new_finalizers(kind, before, metadata)
    result = _checked(kind, metadata, content)
    if _is_removable(kind, result):
        return Gone(result)
    return result if result != _without_version(old) else None


def deleted(kind: Kind[Any], old: Json, *, grace_seconds: int | None, now: float) -> Outcome:
    """The object after a delete: gone, with a deletion timestamp, or unchanged when it already had one."""
    metadata = old["metadata"]
    grace = _grace(kind, old, grace_seconds)
    if "deletionTimestamp" in metadata:
        if grace_seconds is None and kind.graceful_deletion:
            return None  # already being deleted, and no shorter grace period was requested
        if grace >= metadata.get("deletionGracePeriodSeconds", 0):
            return Gone(old) if grace == 0 and _is_removable(kind, old) else None
    else:
        metadata = {**metadata, "generation": metadata.get("generation", 0) + 1}
    if grace == 0 and not metadata.get("finalizers") and kind.name != "Namespace":
        return Gone(old)
    metadata = {
        **metadata,
        "deletionTimestamp": units.timestamp_text(int(now) + grace),
        "deletionGracePeriodSeconds": grace,
    }
    deleting = {**old, "metadata": dict(sorted(metadata.items()))}
    if kind.name == "Namespace":
        deleting["status"] = {**old.get("status", {}), "phase": "Terminating"}
    return _without_version(deleting)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: objects merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def difference(old: Json, new: Json) -> Json:
    """The smallest merge patch that turns `old` into `new`."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := difference(old[key], value):
                patch[key] = inner
        elif value != old[key]:
            patch[key] = value
    return patch


def versioned(kind: Kind[Any], data: Json, version: str) -> Document:
    """The document in stored form: apiVersion and kind first, metadata sorted, with its version."""
    metadata = dict(sorted({**data["metadata"], "resourceVersion": version}.items()))
    rest = {key: value for key, value in data.items() if key not in ("apiVersion", "kind", "metadata")}
    return Document({"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **rest})


def check_name_and_namespace(kind: Kind[Any], metadata: Json) -> None:
    """Requires a valid name, and a namespace if and only if the kind is namespaced."""
    name, namespace = metadata.get("name"), metadata.get("namespace") or ""
    faults = []
    if not isinstance(name, str) or not _SUBDOMAIN.match(name) or len(name) > 253:
        faults.append(
            Fault("metadata.name", f"must be lower-case letters, digits, hyphens and dots, at most 253, not {name!r}")
        )
    if kind.namespaced and not namespace:
        faults.append(Fault("metadata.namespace", "is required"))
    if not kind.namespaced and namespace:
        faults.append(Fault("metadata.namespace", f"must be absent: {kind.plural} are not namespaced"))
    if faults:
        raise Invalid.because(kind.singular, faults)


def check_binding(patch: Json) -> None:
    """Requires that a patch that sets a pod's node only adds annotations besides, as on Kubernetes."""
    metadata = patch.get("metadata") or {}
    others = [f"spec.{key}" for key in patch["spec"] if key != "nodeName"]
    others += [f"metadata.{key}" for key in metadata if key not in ("annotations", "uid", "resourceVersion")]
    others += [key for key in patch if key not in ("spec", "metadata", "apiVersion", "kind")]
    removed = [key for key, value in (metadata.get("annotations") or {}).items() if value is None]
    others += [f"metadata.annotations[{key!r}]" for key in removed]
    if others:
        faults = [Fault(path, "cannot change in the write that sets the node") for path in others]
        raise Invalid.because(
            "pod", faults, hint="set only annotations in this patch; change the rest before or after it"
        )


def _metadata(sent: Json, before: Json) -> Json:
    """The caller's labels, annotations, finalizers and owners with the store's own fields, without empty ones."""
    _check_metadata(sent)
    name = {key: (before or sent)[key] for key in ("name", "namespace") if (before or sent).get(key)}
    from_caller = {key: sent[key] for key in _SET_BY_CALLER if sent.get(key)}
    from_store = {key: before[key] for key in _SET_BY_STORE if key in before}
    return dict(sorted({**name, **from_caller, **from_store}.items()))


def _check_current(kind: Kind[Any], before: Json, sent: Json) -> None:
    version = sent.get("resourceVersion")
    if not version:
        raise Invalid.because(
            kind.singular,
            [Fault("metadata.resourceVersion", "is required")],
            hint="read the object, change it, write it back",
        )
    if version != before["resourceVersion"] or (sent.get("uid") or before["uid"]) != before["uid"]:
        raise Conflict(
            f"{kind.singular} {before['name']!r} has changed since version {version}",
            hint="read it again and repeat the change",
        )


def _check_metadata(metadata: Json) -> None:
    faults = []
    for part in ("labels", "annotations"):
        pairs = metadata.get(part) or {}
        if not isinstance(pairs, dict):
            faults.append(Fault(f"metadata.{part}", "must be an object"))
            continue
        for key, value in pairs.items():
            if not _is_qualified(key):
                faults.append(Fault(f"metadata.{part}", f"{key!r} is not a valid key"))
            if not isinstance(value, str):
                faults.append(Fault(f"metadata.{part}[{key!r}]", "must be text"))
            elif part == "labels" and not _LABEL_VALUE.match(value):
                faults.append(Fault(f"metadata.labels[{key!r}]", f"{value!r} is not a valid label value"))
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and sum(len(k) + len(str(v)) for k, v in annotations.items()) > _ANNOTATIONS_LIMIT:
        faults.append(Fault("metadata.annotations", f"must not exceed {_ANNOTATIONS_LIMIT} bytes in all"))
    faults += [
        Fault("metadata.finalizers", f"{finalizer!r} is not a valid name")
        for finalizer in metadata.get("finalizers") or ()
        if not _is_qualified(finalizer)
    ]
    faults += _owner_faults(metadata.get("ownerReferences") or ())
    if faults:
        raise Invalid.because("metadata", faults)


def _owner_faults(owners: Any) -> list[Fault]:
    faults = [
        Fault(f"metadata.ownerReferences[{index}].{key}", "is required")
        for index, owner in enumerate(owners)
        for key in ("apiVersion", "kind", "name", "uid")
        if not isinstance(owner, dict) or not owner.get(key)
    ]
    if not faults and sum(bool(owner.get("controller")) for owner in owners) > 1:
        faults.append(Fault("metadata.ownerReferences", "only one owner may be the controller"))
    return faults


def _is_qualified(key: Any) -> bool:
    if not isinstance(key, str):
        return False
    prefix, slash, name = key.rpartition("/")
    return bool(_LABEL_NAME.match(name)) and (not slash or (bool(_SUBDOMAIN.match(prefix)) and len(prefix) <= 253))


def _check_no_new_finalizers(kind: Kind[Any], before: Json, metadata: Json) -> None:
    new = set(metadata.get("finalizers", ())) - set(before.get("finalizers", ()))
    if new:
        raise Invalid.because(
            f"{kind.singular} {before['name']!r}",
            [Fault("metadata.finalizers", f"cannot add {', '.join(sorted(new))}: the object is being deleted")],
        )


def _check_pod(name: str, old: Json, new: Json) -> None:
    if old.get("nodeName") and new.get("nodeName") != old["nodeName"]:
        raise Conflict(f"pod {name!r} is already assigned to node {old['nodeName']!r}")
    frozen = [key for key in {*old, *new} if key not in _POD_MUTABLE and old.get(key) != new.get(key)]
    if frozen:
        raise Invalid.because(f"pod {name!r}", [Fault(f"spec.{key}", "cannot be changed") for key in sorted(frozen)])


def _grace(kind: Kind[Any], old: Json, requested: int | None) -> int:
    """The grace period in seconds; 0 for an object that is not running."""
    if not kind.graceful_deletion:
        return 0
    spec, phase = old.get("spec") or {}, (old.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    if requested is not None:
        return max(0, requested)
    return int(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS))


def _is_removable(kind: Kind[Any], data: Json) -> bool:
    """Whether the object is being deleted and neither finalizers nor a grace period hold it."""
    metadata = data["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if kind.name == "Namespace" and (data.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _checked(kind: Kind[Any], metadata: Json, content: Json) -> Json:
    return _size_checked(kind, {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **content})


def _size_checked(kind: Kind[Any], data: Json) -> Json:
    try:
        size = len(Document(data).raw)
    except UnicodeEncodeError:
        raise Invalid(f"{kind.singular} {data['metadata']['name']!r} has text that is not valid Unicode") from None
    if size > MAX_DOCUMENT:
        raise TooLarge(f"{kind.singular} {data['metadata']['name']!r} has {size} bytes; at most {MAX_DOCUMENT} fit")
    return data


def _spec_fields(data: Json) -> Json:
    return {key: value for key, value in data.items() if key not in ("apiVersion", "kind", "metadata", "status")}


def _without_version(data: Json) -> Json:
    metadata = {key: value for key, value in data["metadata"].items() if key != "resourceVersion"}
    return {**data, "metadata": metadata}
