"""The CustomResourceDefinitions of `run.ai/v2alpha1`; their schemas come from the table of fields.

Unknown fields are kept and reported instead of dropped: a manifest may be older or newer than this version, and its
author should learn that a field has no effect. The controller checks values and reports all faults at once.
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
            {"name": title, "type": form, "jsonPath": path, "priority": priority}
            for title, form, path, priority in _COLUMNS
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
    properties = {name: _field(field) for name, field in FIELDS.items()}
    properties |= {name: _items(items.path) for name, items in ITEMS.items()}
    properties |= {name: {**_ANYTHING, "description": "Text, or {value: text}."} for name in SPECIAL}
    spec = {"type": "object", "description": "What to run.", "properties": properties, **_ANYTHING}
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
    value = {"type": field.schema_type} if field.schema_type else _ANYTHING
    description = f"{{value: ...}}; the workload's spec.{field.path}."
    return {"type": "object", "description": description, "properties": {"value": value}, **_ANYTHING}


def _items(path: str) -> Json:
    item = {"type": "object", "properties": {"value": _ANYTHING}, **_ANYTHING}
    items = {"type": "object", "additionalProperties": item}
    description = f"{{items: {{NAME: {{value: ...}}}}}}; the workload's spec.{path}."
    return {"type": "object", "description": description, "properties": {"items": items}, **_ANYTHING}


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
    "description": "The status of its workload.",
    "properties": {
        "phase": _TEXT,
        "reason": _TEXT,
        "message": _TEXT,
        "workload": {**_TEXT, "description": "Name of the workload that was created."},
        "workloadUid": _TEXT,
        "observedGeneration": _NUMBER,
        "nodes": {"type": "array", "items": _TEXT},
        "conditions": {
            "type": "array", "items": _CONDITION,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        },
    },
}  # fmt: skip
