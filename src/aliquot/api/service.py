"""Kubernetes services, with the fields that we use."""

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


# Pydantic would report a fault for each member of the union; this validator has one message for both.
IntOrText = Annotated[int | str, BeforeValidator(_int_or_text)]


@record
class ServicePort:
    """A port of a service."""

    port: int
    """Port of the service."""
    name: str = ""
    """Name of the port."""
    protocol: str = "TCP"
    """TCP or UDP."""
    target_port: IntOrText | None = None
    """Port of the pods, by number or name."""
    node_port: int | None = None
    """Port on every node."""


@kubernetes_record
class ServiceSpec:
    """Selector, ports and address of a service."""

    type: str = "ClusterIP"
    """ClusterIP, NodePort, LoadBalancer or ExternalName."""
    selector: Labels = EMPTY_MAP
    """Labels of the pods behind the service."""
    ports: tuple[ServicePort, ...] = ()
    """Ports of the service."""
    cluster_ip: str = ""
    """IP address of the service; None for a headless service."""
    external_name: str = ""
    """DNS name that a service of type ExternalName refers to."""


@record
class ServiceStatus:
    """Observed state of a service."""

    load_balancer: JsonMap = EMPTY_MAP
    """State of the load balancer."""


@record
class Service:
    """A stable address for a set of pods."""

    metadata: Metadata
    """Standard object metadata."""
    spec: ServiceSpec = ServiceSpec()
    """Selector, ports and address of the service."""
    status: ServiceStatus = ServiceStatus()
    """Observed state of the service."""
