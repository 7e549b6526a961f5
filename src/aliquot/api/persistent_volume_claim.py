"""Kubernetes persistent volume claims, with the fields that we use."""

from __future__ import annotations

from aliquot.api.field_types import EMPTY_MAP, Labels, Strings
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class ClaimResources:
    """Storage that a claim requests."""

    requests: Labels = EMPTY_MAP
    """Minimum amount, under the key `storage`."""
    limits: Labels = EMPTY_MAP
    """Maximum amount, under the key `storage`."""


@record
class ClaimSpec:
    """Desired state of a claim."""

    access_modes: Strings = ()
    """Access modes of the volume."""
    resources: ClaimResources = ClaimResources()
    """Storage that the claim requests."""
    storage_class_name: str | None = None
    """Storage class; defaults to the cluster's default class."""
    volume_mode: str | None = None
    """Filesystem or Block."""
    volume_name: str = ""
    """Name of the bound volume."""


@record
class ClaimStatus:
    """Observed state of a claim."""

    phase: str = ""
    """Pending, Bound or Lost."""
    capacity: Labels = EMPTY_MAP
    """Capacity of the bound volume."""
    access_modes: Strings = ()
    """Access modes of the bound volume."""


@record
class Claim:
    """A request for storage that outlives pods."""

    metadata: Metadata
    """Standard object metadata."""
    spec: ClaimSpec = ClaimSpec()
    """Desired state of the claim."""
    status: ClaimStatus = ClaimStatus()
    """Observed state of the claim."""
