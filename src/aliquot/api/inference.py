"""Inference: the endpoint of a workload, its replicas and their autoscaling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import Count, Duration, Positive, Strings
from aliquot.api.network import PortNumber
from aliquot.api.serialization import record
from aliquot.errors import Fault


@record
class ServingPort:
    """The port that receives requests."""

    container: PortNumber
    """Port on which the model server listens."""
    protocol: Literal["http", "grpc"] | None = None
    """Protocol of the requests; defaults to http."""
    authorization_type: Literal["public", "authenticatedUsers", "authorizedUsersOrGroups"] | None = None
    """Who may send requests; defaults to public."""
    authorized_users: Strings = ()
    """Users who may send requests."""
    authorized_groups: Strings = ()
    """Groups whose members may send requests."""
    private: bool | None = None
    """Whether the port is reachable only from inside the cluster."""


@record
class Autoscaling:
    """How the number of replicas follows the load."""

    min_replicas: Count | None = None
    """Minimum number of replicas; 0 allows scaling to zero, with throughput and concurrency only."""
    max_replicas: Positive | None = None
    """Maximum number of replicas."""
    metric: Literal["concurrency", "throughput", "latency"] | None = None
    """Metric that scaling follows."""
    metric_name: str = ""
    """Name of a custom metric, instead of metric."""
    metric_threshold: Annotated[float, Field(ge=0)] | None = None
    """Threshold above which replicas are added: concurrent requests, requests per second or milliseconds."""
    metric_threshold_percentage: Annotated[float, Field(gt=0, le=100)] | None = None
    """Percentage of the threshold that scaling aims at."""
    activation_replicas: Positive | None = None
    """Number of replicas to which the first request scales up from zero."""
    concurrency_hard_limit: Count | None = None
    """Maximum number of concurrent requests per replica; 0 = no limit."""
    scale_to_zero_retention_seconds: Duration | None = None
    """How long there are no requests before scaling to zero."""
    scale_down_delay_seconds: Duration | None = None
    """How long the load must be low before replicas are removed."""
    initial_replicas: Count | None = None
    """Number of replicas at the start."""
    autoscaler_class: str = ""
    """Autoscaler to use, for clusters that have more than one."""

    def faults(self, path: str) -> Iterator[Fault]:
        least, most = self.min_replicas, self.max_replicas
        if least is not None and most is not None and least > most:
            yield Fault(f"{path}.minReplicas", "must not be more than maxReplicas")
        if least == 0 and self.metric == "latency":
            yield Fault(f"{path}.minReplicas", "must be at least 1 with metric latency, which needs a running replica")


@record
class Serving:
    """Settings of an inference workload."""

    replicas: Count | None = None
    """Number of replicas without autoscaling; defaults to 1."""
    port: ServingPort | None = None
    """Port that receives requests."""
    autoscaling: Autoscaling | None = None
    """How the number of replicas follows the load."""
    model: str = ""
    """Model to serve, such as a name on Hugging Face."""
    model_source: Literal["custom", "hugging-face", "nim"] | None = None
    """Source of the model."""
    model_profile: str = ""
    """Profile of a NIM; chosen automatically unless set."""
    update_deadline: Duration | None = None
    """How long an update may take before it is rolled back; defaults to 10m."""

    def faults(self, path: str) -> Iterator[Fault]:
        if self.replicas is not None and self.autoscaling:
            yield Fault(f"{path}.replicas", "must not be given together with autoscaling")
        if self.autoscaling:
            yield from self.autoscaling.faults(f"{path}.autoscaling")
