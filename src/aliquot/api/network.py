"""How users and other programs reach a workload."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import Duration, Positive, Strings
from aliquot.api.serialization import record

PortNumber = Annotated[int, Field(ge=1, le=65535)]
# The classic words and those of later versions.
ServiceType = Literal["ingress", "portforward", "loadbalancer", "nodeport", "external-url"]


@record
class Port:
    """A port of the container, opened to the outside."""

    container: PortNumber
    """Port that the program listens on."""
    external: PortNumber | None = None
    """Port on the outside; chosen by the platform unless given."""
    service_type: ServiceType | None = None
    """How it is opened; the workload's serviceType unless given."""
    protocol: Literal["TCP", "UDP"] | None = None
    """TCP unless given."""
    name: str = ""
    """What the port is called."""
    tool_type: str = ""
    """What answers there, such as jupyter-notebook."""
    exclude: bool = False
    """Leaves out the port of this number that a template or policy adds."""


@record
class ExposedUrl:
    """A web tool of the container, opened at a URL."""

    container: PortNumber
    """Port that the tool listens on."""
    url: str = ""
    """URL; made by the platform unless given."""
    tool_type: str = ""
    """What kind of tool it is, such as jupyter-notebook or tensorboard."""
    tool_name: str = ""
    """What the tool is called."""
    authorization_type: Literal["public", "authenticatedUsers", "authorizedUsersOrGroups"] | None = None
    """Who may open it; every authenticated user unless given."""
    authorized_users: Strings = ()
    """Users who may open it."""
    authorized_groups: Strings = ()
    """Groups whose members may open it."""
    exclude: bool = False
    """Leaves out the URL of this port that a template or policy adds."""


@record
class HttpCheck:
    """An HTTP request to the container."""

    port: PortNumber
    """Port that is asked."""
    path: str = "/"
    """Path that is asked for."""
    host: str = ""
    """Host that is asked; the pod unless given."""
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    """How it is asked."""


@record
class Probe:
    """How the platform finds out that a container is well."""

    http_get: HttpCheck | None = None
    """Ask by HTTP; any answer from 200 to 399 is good."""
    tcp_port: PortNumber | None = None
    """Ask by opening this port."""
    command: Strings = ()
    """Ask by running this in the container; exit status 0 is good."""
    initial_delay_seconds: Duration | None = None
    """How long to wait before the first question."""
    period_seconds: Duration | None = None
    """How long between questions."""
    timeout_seconds: Duration | None = None
    """How long to wait for an answer."""
    success_threshold: Positive | None = None
    """Good answers in a row before it counts as well."""
    failure_threshold: Positive | None = None
    """Bad answers in a row before it counts as not well."""


@record
class Probes:
    """Questions that are put to the container."""

    readiness: Probe | None = None
    """Whether it may get requests."""
    liveness: Probe | None = None
    """Whether it must be restarted."""
    startup: Probe | None = None
    """Whether it has started; the others wait for it."""
