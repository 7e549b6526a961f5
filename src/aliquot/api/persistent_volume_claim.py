"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from aliquot.api.field_types import EMPTY_MAP, Labels, Strings
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class ClaimResources:
    """How much is wanted."""

    requests: Labels = EMPTY_MAP
    """`storage`: at least this much."""
    limits: Labels = EMPTY_MAP
    """`storage`: at most this much."""


@record
class ClaimSpec:
    """What storage is wanted."""

    access_modes: Strings = ()
    """Who may mount it at once."""
    resources: ClaimResources = ClaimResources()
    """How much is wanted."""
    storage_class_name: str | None = None
    """Which kind of storage; the cluster's default unless given."""
    volume_mode: str | None = None
    """Filesystem or Block."""
    volume_name: str = ""
    """The volume that was found."""


@record
class ClaimStatus:
    """What storage was found."""

    phase: str = ""
    """Pending, Bound or Lost."""
    capacity: Labels = EMPTY_MAP
    """How much there is."""
    access_modes: Strings = ()
    """Who may mount it at once."""


@record
class Claim:
    """Asks for storage that outlives pods."""

    metadata: Metadata
    """Name and marks."""
    spec: ClaimSpec = ClaimSpec()
    """What storage is wanted."""
    status: ClaimStatus = ClaimStatus()
    """What storage was found."""
