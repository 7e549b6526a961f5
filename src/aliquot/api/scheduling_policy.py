"""What is shared, and by which rules: node pools and the scheduler's policy for them."""

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
    """Past use lowers a queue's part of what is idle, never its quota."""

    weight: NotNegative = 0
    """How strongly past use counts; 0 = not at all."""
    window: Duration | None = None
    """How far back use is counted; a week unless given."""
    window_type: Literal["sliding", "tumbling"] | None = None
    """Whether the window moves on all the time or starts anew; sliding unless given."""
    half_life: Duration | None = None
    """After this long, use counts half; it does not fade unless given."""


@record
class SchedulingPolicySpec:
    """How the scheduler decides. Whatever is absent has the scheduler's own default."""

    pools: Strings = ()
    """Node pools it holds for; when empty, every pool that no other policy names."""
    steps: tuple[Step, ...] = ()
    """What one cycle does, in this order; all steps when empty."""
    spare: Literal["quota", "weight"] | None = None
    """Whether idle resources are split by quota or by over-quota weight; quota unless given."""
    placement: Placement = Placement()
    """Whether pods are packed or spread."""
    stale_gang_grace: DurationOrNever | None = None
    """How long a group may run with too few members; 60s unless given, 0 = not at all, -1 = for ever."""
    terminating_grace: Duration | None = None
    """A pod that takes longer than this to stop is stuck: nothing is planned on its place; no bound unless given."""
    hold_after: DurationOrNever | None = None
    """How long a workload waits before GPUs are kept for it as they come free; 10m unless given, 0 or -1 = never."""
    usage: PastUse = PastUse()
    """Fairness over time."""
    victims: Literal["least-disruption", "newest"] | None = None
    """Which of the workloads that may be stopped go first; least-disruption unless given."""
    disruption_bound: Annotated[float, Field(ge=-1)] | None = None
    """Most GPUs stopped or moved per GPU gained; 4 unless given, -1 = no bound."""
    share_unit: Literal["milli", "whole"] | None = None
    """Whether shares are exact to a thousandth of a GPU or whole; milli unless given."""
    saturation_multiplier: Annotated[float, Field(ge=1)] | None = None
    """Above 1 makes taking back more reluctant, against workloads that stop each other in turn; 1 unless given."""
    department_first: bool | None = None
    """Whether idle resources go to departments first and then to their projects; true unless given."""
    preemption_grace: Duration | None = None
    """How long a preempted workload may take to stop, where it does not say; 30s unless given."""
    terminate_after_preemption: bool | None = None
    """Whether preempted training ends instead of going back to the queue; false unless given."""
    restarts_per_hour: Count | None = None
    """Most times an hour that one workload may be stopped for others; no bound unless given."""
    description: Text = ""
    """For people."""


@record
class SchedulingPolicyStatus:
    """Whether the policy is in force."""

    pools: Strings = ()
    """Node pools it holds for now."""
    observed_generation: Int64 | None = None
    """The generation of the spec that is in force."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class SchedulingPolicy:
    """How the scheduler decides in some node pools. It may be changed while workloads run."""

    metadata: Metadata
    """Name and marks."""
    spec: SchedulingPolicySpec = SchedulingPolicySpec()
    """How the scheduler decides."""
    status: SchedulingPolicyStatus = SchedulingPolicyStatus()
    """Whether the policy is in force; written by the platform."""
