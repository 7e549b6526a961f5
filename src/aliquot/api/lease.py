"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from aliquot.api.field_types import MicroTime
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class LeaseSpec:
    """Who holds it, since when and for how long."""

    holder_identity: str | None = None
    """Who holds it."""
    lease_duration_seconds: int | None = None
    """How long it holds without being renewed."""
    acquire_time: MicroTime | None = None
    """When the holder got it."""
    renew_time: MicroTime | None = None
    """When the holder last renewed it."""
    lease_transitions: int | None = None
    """How often it changed hands."""


@record
class Lease:
    """Held by one program at a time: who leads, or which node is alive."""

    metadata: Metadata
    """Name and marks."""
    spec: LeaseSpec = LeaseSpec()
    """Who holds it."""
