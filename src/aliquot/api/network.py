"""Network settings of a workload: ports, URLs, and the probes that check its containers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import Duration, Positive, Strings
from aliquot.api.serialization import record

PortNumber = Annotated[int, Field(ge=1, le=65535)]
# The names of Run:ai's first versions and of later ones.
ServiceType = Literal["ingress", "portforward", "loadbalancer", "nodeport", "external-url"]


@record
class Port:
    """A container port that is exposed outside of the pod."""

    container: PortNumber
    """Port on which the program listens."""
    external: PortNumber | None = None
    """Port on which it is exposed; chosen by the platform unless set."""
    service_type: ServiceType | None = None
    """How the port is exposed; defaults to the workload's serviceType."""
    protocol: Literal["TCP", "UDP"] | None = None
    """Protocol of the port; defaults to TCP."""
    name: str = ""
    """Name of the port."""
    tool_type: str = ""
    """Type of the tool that listens on the port, such as jupyter-notebook."""
    exclude: bool = False
    """Whether to remove the port of this number that a template or policy adds."""


@record
class ExposedUrl:
    """A web tool of the container that is exposed at a URL."""

    container: PortNumber
    """Port on which the tool listens."""
    url: str = ""
    """URL of the tool; chosen by the platform unless set."""
    tool_type: str = ""
    """Type of the tool, such as jupyter-notebook or tensorboard."""
    tool_name: str = ""
    """Name of the tool."""
    authorization_type: Literal["public", "authenticatedUsers", "authorizedUsersOrGroups"] | None = None
    """Who may open the URL; every authenticated user unless set."""
    authorized_users: Strings = ()
    """Users who may open the URL."""
    authorized_groups: Strings = ()
    """Groups whose members may open the URL."""
    exclude: bool = False
    """Whether to remove the URL of this port that a template or policy adds."""


@record
class HttpCheck:
    """An HTTP request that checks a container."""

    port: PortNumber
    """Port to which the request goes."""
    path: str = "/"
    """Path of the request."""
    host: str = ""
    """Host to which the request goes; defaults to the pod."""
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"
    """Scheme of the request."""


@record
class Probe:
    """A periodic check of a container."""

    http_get: HttpCheck | None = None
    """HTTP request to send; a status from 200 to 399 is a success."""
    tcp_port: PortNumber | None = None
    """TCP port to connect to; a connection is a success."""
    command: Strings = ()
    """Command to run in the container; exit status 0 is a success."""
    initial_delay_seconds: Duration | None = None
    """Time from the start of the container to the first check."""
    period_seconds: Duration | None = None
    """Time between checks."""
    timeout_seconds: Duration | None = None
    """Time after which a check fails."""
    success_threshold: Positive | None = None
    """Number of successes in a row after which the container counts as healthy."""
    failure_threshold: Positive | None = None
    """Number of failures in a row after which the container counts as unhealthy."""


@record
class Probes:
    """Probes of the container."""

    readiness: Probe | None = None
    """Probe that decides whether the container receives requests."""
    liveness: Probe | None = None
    """Probe that decides whether the container is restarted."""
    startup: Probe | None = None
    """Probe that decides whether the container has started; the other probes wait for it."""
