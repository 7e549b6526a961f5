"""Kinds for tests of the client: built-in ones, and Gadget, a custom resource with schema, rule, status and field
selector."""

from __future__ import annotations

from typing import Any

from aliquot.api import Kind
from aliquot.store.driver import Document

GROUP = "test.aliquot.dev"
GADGET: Kind[dict[str, Any]] = Kind(
    name="Gadget", type=dict, plural="gadgets", group=GROUP, namespaced=True, selectable_fields=("spec.color",)
)
POD: Kind[dict[str, Any]] = Kind(
    name="Pod", type=dict, plural="pods", group="", namespaced=True, graceful_deletion=True
)
NAMESPACE: Kind[dict[str, Any]] = Kind(name="Namespace", type=dict, plural="namespaces", group="")
CONFIG: Kind[dict[str, Any]] = Kind(
    name="ConfigMap", type=dict, plural="configmaps", group="", namespaced=True, has_status=False
)

GADGET_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"gadgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "size": {"type": "integer", "minimum": 0},
                                    "color": {"type": "string"},
                                    "text": {"type": "string"},
                                },
                                "x-kubernetes-validations": [
                                    {"rule": "!has(self.size) || self.size < 100", "message": "must be below 100"}
                                ],
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


def gadget(namespace: str, name: str = "g", *, metadata: dict[str, Any] | None = None, **spec: Any) -> Document:
    return Document({"metadata": {"name": name, "namespace": namespace, **(metadata or {})}, "spec": spec})


def pod_document(namespace: str, name: str = "p", **spec: Any) -> Document:
    containers = [{"name": "main", "image": "none"}]
    return Document({"metadata": {"name": name, "namespace": namespace}, "spec": {"containers": containers, **spec}})
