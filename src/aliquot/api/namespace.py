"""Kubernetes namespaces, with the fields that we use."""

from __future__ import annotations

from aliquot.api.field_types import Strings
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class NamespaceSpec:
    """Desired state of a namespace."""

    finalizers: Strings = ()
    """Finalizers that must be removed before the namespace is removed."""


@record
class NamespaceStatus:
    """Observed state of a namespace."""

    phase: str = ""
    """Active or Terminating."""


@record
class Namespace:
    """A namespace for objects. Every project has one."""

    metadata: Metadata
    """Standard object metadata."""
    spec: NamespaceSpec = NamespaceSpec()
    """Desired state of the namespace."""
    status: NamespaceStatus = NamespaceStatus()
    """Observed state of the namespace."""
