"""The custom resources of `run.ai/v2alpha1`: their schemas come from the table of fields.

Fields that we do not know are kept and reported, not dropped: a manifest may be older or newer than we are, and whoever
wrote it should hear that a line does nothing. Values are checked by the loop, which tells all faults at once.
"""

from __future__ import annotations

from typing import Any

from aliquot.api import Json, Kind
from aliquot.backends.kubernetes.v2alpha1.fields import FIELDS, ITEMS, SPECIAL, Field

GROUP, VERSION = "run.ai", "v2alpha1"


def _kind(name: str, *short: str) -> Kind[dict[str, Any]]:
    return Kind(
        name=name, type=dict, plural=f"{name.lower()}s", aliases=short, group=GROUP, version=VERSION, namespaced=True
    )


TRAINING = _kind("TrainingWorkload", "tw")
INTERACTIVE = _kind("InteractiveWorkload", "iw")
RUNAI_KINDS = (TRAINING, INTERACTIVE)

_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "format": "int64"}
_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("GPUs", "string", ".spec.gpu.value", 0),
    ("User", "string", ".spec.username.value", 0),
    ("Image", "string", ".spec.image.value", 1),
    ("Message", "string", ".status.message", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def definitions() -> list[Json]:
    return [_definition(kind) for kind in RUNAI_KINDS]


def _definition(kind: Kind[dict[str, Any]]) -> Json:
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _schema(kind)},
        "additionalPrinterColumns": [
            {"name": title, "type": form, "jsonPath": path, "priority": wide} for title, form, path, wide in _COLUMNS
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": list(kind.aliases),
                "categories": ["aliquot"],
            },
            "versions": [version],
        },
    }


def _schema(kind: Kind[dict[str, Any]]) -> Json:
    parts = {name: _field(field) for name, field in FIELDS.items()}
    parts |= {name: _items(items.path) for name, items in ITEMS.items()}
    parts |= {name: {**_ANYTHING, "description": "Text, or {value: text}."} for name in SPECIAL}
    spec = {"type": "object", "description": "What to run.", "properties": parts, **_ANYTHING}
    return {
        "type": "object",
        "description": f"{kind.name} of Run:ai; Aliquot makes a Workload of the same name from it.",
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _STATUS,
        },
    }


def _field(field: Field) -> Json:
    value = {"type": field.form} if field.form else _ANYTHING
    words = f"{{value: ...}}; the workload's spec.{field.path}."
    return {"type": "object", "description": words, "properties": {"value": value}, **_ANYTHING}


def _items(path: str) -> Json:
    item = {"type": "object", "properties": {"value": _ANYTHING}, **_ANYTHING}
    items = {"type": "object", "additionalProperties": item}
    words = f"{{items: {{NAME: {{value: ...}}}}}}; the workload's spec.{path}."
    return {"type": "object", "description": words, "properties": {"items": items}, **_ANYTHING}


_CONDITION = {
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        **dict.fromkeys(("type", "status", "reason", "message"), _TEXT),
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": _NUMBER,
    },
}
_STATUS = {
    "type": "object",
    "description": "How its workload stands.",
    "properties": {
        "phase": _TEXT,
        "reason": _TEXT,
        "message": _TEXT,
        "workload": {**_TEXT, "description": "Name of the workload that was made."},
        "workloadUid": _TEXT,
        "observedGeneration": _NUMBER,
        "nodes": {"type": "array", "items": _TEXT},
        "conditions": {
            "type": "array", "items": _CONDITION,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        },
    },
}  # fmt: skip
