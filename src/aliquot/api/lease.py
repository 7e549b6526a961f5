"""Kubernetes leases, by which controllers elect a leader and nodes show that they are alive."""

from __future__ import annotations

from aliquot.api.field_types import MicroTime
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import record


@record
class LeaseSpec:
    """Holder and duration of a lease."""

    holder_identity: str | None = None
    """Identity of the holder."""
    lease_duration_seconds: int | None = None
    """Number of seconds after the last renewal at which the lease expires."""
    acquire_time: MicroTime | None = None
    """Time at which the holder acquired the lease."""
    renew_time: MicroTime | None = None
    """Time at which the holder last renewed the lease."""
    lease_transitions: int | None = None
    """Number of times that the holder changed."""


@record
class Lease:
    """A lease that one program holds at a time, for leader election or as the heartbeat of a node."""

    metadata: Metadata
    """Standard object metadata."""
    spec: LeaseSpec = LeaseSpec()
    """Holder and duration of the lease."""
