"""What Kubernetes has too, in its own wire shape, as far as we use it: nodes, services, claims, events, leases.

On Kubernetes these are the cluster's own objects; embedded, our agent and loops write them. Fields we do not know are
left alone, because stores change objects by merge patch. Pods are in pod.py.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from aliquot.api.field_types import EMPTY_MAP, JsonMap, Labels
from aliquot.api.metadata import Metadata
from aliquot.api.serialization import kubernetes_record, record


def _int_or_text(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("must be a number or a name")
    return value


# A union of two checks would report both; this one says what it wants.
IntOrText = Annotated[int | str, BeforeValidator(_int_or_text)]


@record
class ServicePort:
    """One port of a service."""

    port: int
    """Port of the service."""
    name: str = ""
    """What it is called."""
    protocol: str = "TCP"
    """TCP or UDP."""
    target_port: IntOrText | None = None
    """Port of the pods, or its name."""
    node_port: int | None = None
    """Port on every node."""


@kubernetes_record
class ServiceSpec:
    """Which pods, at which address."""

    type: str = "ClusterIP"
    """ClusterIP, NodePort, LoadBalancer or ExternalName."""
    selector: Labels = EMPTY_MAP
    """Labels of the pods behind it."""
    ports: tuple[ServicePort, ...] = ()
    """Its ports."""
    cluster_ip: str = ""
    """Its address; None for a service without one."""
    external_name: str = ""
    """A name elsewhere, for ExternalName."""


@record
class ServiceStatus:
    """How it is reached from outside."""

    load_balancer: JsonMap = EMPTY_MAP
    """What the load balancer says."""


@record
class Service:
    """A stable address for pods."""

    metadata: Metadata
    """Name and marks."""
    spec: ServiceSpec = ServiceSpec()
    """Which pods, at which address."""
    status: ServiceStatus = ServiceStatus()
    """How it is reached from outside."""
