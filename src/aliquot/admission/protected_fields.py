"""Fields that users may not write: where a pod runs, which GPUs it holds, and who submitted a workload.

`Kind.protected_fields` lists them. Setting or changing one needs the permission to write the object's status.
"""

from __future__ import annotations

from typing import Any

from aliquot.admission.field_paths import value_at
from aliquot.store.driver import AnyKind, Document


def protected_values(kind: AnyKind, document: Document | None) -> tuple[Any, ...]:
    """The values of the protected fields; None for each that is missing or empty."""
    return tuple((value_at(document.data, path) or None) if document else None for path in kind.protected_fields)


def record_submitter(kind: AnyKind, document: Document, subject: str) -> Document:
    """A new object with the authenticated user in its kind's submitter field, unless the field is already set."""
    field = kind.submitter_field
    if not field or value_at(document.data, ("spec", field)):
        return document
    return Document({**document.data, "spec": {**(document.data.get("spec") or {}), field: subject}})
