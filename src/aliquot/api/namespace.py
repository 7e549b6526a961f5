"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from aliquot.api.field_types import Strings
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class NamespaceSpec:
    """Nothing that we use."""

    finalizers: Strings = ()
    """Who must finish before the namespace may go."""


@record
class NamespaceStatus:
    """Where the namespace is in its life."""

    phase: str = ""
    """Active or Terminating."""


@record
class Namespace:
    """A place for objects; each project has one."""

    metadata: Metadata
    """Name and marks."""
    spec: NamespaceSpec = NamespaceSpec()
    """How it goes."""
    status: NamespaceStatus = NamespaceStatus()
    """Where it is in its life."""
