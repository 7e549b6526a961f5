"""Scheduling policies: how the scheduler decides in the node pools they name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.conditions import Condition
from aliquot.api.field_types import Count, Duration, DurationOrNever, Int64, Strings, Text
from aliquot.api.metadata import Metadata
from aliquot.api.placement_strategy import Placement
from aliquot.api.serialization import record

Step = Literal["allocate", "consolidate", "reclaim", "preempt", "stale-gang"]


NotNegative = Annotated[float, Field(ge=0)]


@record
class PastUse:
    """How past usage lowers a queue's share of idle resources. It never lowers the quota."""

    weight: NotNegative = 0
    """Weight of past usage; 0 ignores it."""
    window: Duration | None = None
    """Period over which usage counts; defaults to one week."""
    window_type: Literal["sliding", "tumbling"] | None = None
    """sliding moves the window continuously, tumbling starts a new one; defaults to sliding."""
    half_life: Duration | None = None
    """Time after which usage counts half; it does not decay unless set."""


@record
class SchedulingPolicySpec:
    """Settings of the scheduler. A field that is absent has the scheduler's default."""

    pools: Strings = ()
    """Node pools to which the policy applies; if empty, every pool that no other policy names."""
    steps: tuple[Step, ...] = ()
    """Steps of a scheduling cycle, in this order; all steps if empty."""
    spare: Literal["quota", "weight"] | None = None
    """Whether idle resources are divided by quota or by over-quota weight; defaults to quota."""
    placement: Placement = Placement()
    """Placement strategies."""
    stale_gang_grace: DurationOrNever | None = None
    """How long a gang may run below its minimum; defaults to 60s; 0 = not at all, -1 = forever."""
    terminating_grace: Duration | None = None
    """Time after which a terminating pod counts as stuck: its resources are not planned for; none unless set."""
    hold_after: DurationOrNever | None = None
    """Waiting time after which capacity is reserved for a workload; defaults to 10m; 0 or -1 = never."""
    usage: PastUse = PastUse()
    """How past usage counts in the fair share."""
    victims: Literal["least-disruption", "newest"] | None = None
    """Order in which workloads are chosen as victims; defaults to least-disruption."""
    disruption_bound: Annotated[float, Field(ge=-1)] | None = None
    """Maximum number of GPUs evicted or moved per GPU gained; defaults to 4; -1 = no bound."""
    share_unit: Literal["milli", "whole"] | None = None
    """Whether fair shares are exact to a thousandth of a GPU or whole GPUs; defaults to milli."""
    saturation_multiplier: Annotated[float, Field(ge=1)] | None = None
    """Above 1, reclaim is more reluctant, so that workloads do not evict each other in turn; defaults to 1."""
    department_first: bool | None = None
    """Whether idle resources go to departments first and then to their projects; defaults to true."""
    preemption_grace: Duration | None = None
    """Time to stop for preempted workloads that do not set their own; defaults to 30s."""
    terminate_after_preemption: bool | None = None
    """Whether preempted training ends instead of being requeued; defaults to false."""
    restarts_per_hour: Count | None = None
    """Maximum number of evictions of one workload per hour; no bound unless set."""
    description: Text = ""
    """Description of the policy, for display."""


@record
class SchedulingPolicyStatus:
    """Observed state of a scheduling policy."""

    pools: Strings = ()
    """Node pools to which the policy applies now."""
    observed_generation: Int64 | None = None
    """Generation of the spec that is in force."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the policy."""


@record
class SchedulingPolicy:
    """Settings of the scheduler for some node pools. They may change while workloads run."""

    metadata: Metadata
    """Standard object metadata."""
    spec: SchedulingPolicySpec = SchedulingPolicySpec()
    """Settings of the scheduler."""
    status: SchedulingPolicyStatus = SchedulingPolicyStatus()
    """Observed state of the policy; written by the platform."""
