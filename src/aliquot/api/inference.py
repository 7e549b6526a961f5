"""What inference adds to a workload: where it answers, and how many replicas there are."""

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
    """Where requests go to."""

    container: PortNumber
    """Port that the model server listens on."""
    protocol: Literal["http", "grpc"] | None = None
    """http unless given."""
    authorization_type: Literal["public", "authenticatedUsers", "authorizedUsersOrGroups"] | None = None
    """Who may send requests; public unless given."""
    authorized_users: Strings = ()
    """Users who may send requests."""
    authorized_groups: Strings = ()
    """Groups whose members may send requests."""
    private: bool | None = None
    """Whether it is reachable from inside the cluster only."""


@record
class Autoscaling:
    """How the number of replicas follows the load."""

    min_replicas: Count | None = None
    """Fewest replicas; 0 lets it go to sleep, with throughput and concurrency only."""
    max_replicas: Positive | None = None
    """Most replicas."""
    metric: Literal["concurrency", "throughput", "latency"] | None = None
    """What is watched."""
    metric_name: str = ""
    """Name of a metric of one's own, instead of metric."""
    metric_threshold: Annotated[float, Field(ge=0)] | None = None
    """More replicas above this: requests at once, requests per second, or milliseconds."""
    metric_threshold_percentage: Annotated[float, Field(gt=0, le=100)] | None = None
    """Percentage of the threshold that is aimed at."""
    activation_replicas: Positive | None = None
    """How many replicas the first request after sleep starts."""
    concurrency_hard_limit: Count | None = None
    """Most requests that one replica gets at once; 0 = no limit."""
    scale_to_zero_retention_seconds: Duration | None = None
    """How long without requests before it goes to sleep."""
    scale_down_delay_seconds: Duration | None = None
    """How long the load must be low before replicas go."""
    initial_replicas: Count | None = None
    """How many replicas there are at the start."""
    autoscaler_class: str = ""
    """Which autoscaler decides, where the cluster has several."""

    def faults(self, path: str) -> Iterator[Fault]:
        least, most = self.min_replicas, self.max_replicas
        if least is not None and most is not None and least > most:
            yield Fault(f"{path}.minReplicas", "must not be more than maxReplicas")
        if least == 0 and self.metric == "latency":
            yield Fault(f"{path}.minReplicas", "must be at least 1 with metric latency, which sleep has none of")


@record
class Serving:
    """What inference adds."""

    replicas: Count | None = None
    """How many replicas there are, without autoscaling; 1 unless given."""
    port: ServingPort | None = None
    """Where requests go to."""
    autoscaling: Autoscaling | None = None
    """How the number of replicas follows the load."""
    model: str = ""
    """Model to serve, such as a Hugging Face name."""
    model_source: Literal["custom", "hugging-face", "nim"] | None = None
    """Where the model comes from."""
    model_profile: str = ""
    """Profile of a NIM; chosen by itself unless given."""
    update_deadline: Duration | None = None
    """How long an update may take before it is rolled back; 10m unless given."""

    def faults(self, path: str) -> Iterator[Fault]:
        if self.replicas is not None and self.autoscaling:
            yield Fault(f"{path}.replicas", "must not be given together with autoscaling")
        if self.autoscaling:
            yield from self.autoscaling.faults(f"{path}.autoscaling")
