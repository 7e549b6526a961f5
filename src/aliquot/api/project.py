"""Projects: teams or activities with a quota of their own and a namespace for their workloads."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.api.amounts import Amounts, Quota, WeightsOrNumber
from aliquot.api.conditions import Condition, LifecyclePhase
from aliquot.api.field_types import EMPTY_MAP, Duration, Int32, Int64, Label, Strings, Text
from aliquot.api.metadata import Metadata
from aliquot.api.queue import NodeTypes, Pools, PoolUse, Rules
from aliquot.api.serialization import record


@record
class ProjectSpec:
    """Quotas and limits of a project, and rules for its workloads."""

    department: Label | None = None
    """Department that the project belongs to; defaults to `default`."""
    quota: Quota = Quota()
    """Guaranteed resources in node pool default."""
    limit: Amounts = Amounts()
    """Maximum resources in use at once in node pool default; an absent resource has no limit."""
    over_quota: bool = True
    """Whether the project may use idle resources of others beyond its quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Weight for idle resources against other projects, if the policy divides by weight."""
    priority: Int32 | None = None
    """Priority for idle resources; projects with a higher number come first; defaults to 100."""
    pools: Pools = EMPTY_MAP
    """Quota, limit, weight and priority in node pools other than default, by pool."""
    default_pools: Strings = ()
    """Node pools to try, in this order, for workloads that do not specify any."""
    node_types: NodeTypes = NodeTypes()
    """Node types on which its workloads may run."""
    rules: Rules = Rules()
    """Time limits for workloads that are submitted from now on."""
    reclaim_min_runtime: Duration | None = None
    """How long its workloads run before another project may reclaim their resources."""
    preempt_min_runtime: Duration | None = None
    """How long its workloads run before a higher priority of the project preempts them."""
    namespace: Label | None = None
    """Existing namespace to use; defaults to `runai-<project>`."""
    description: Text = ""
    """Description of the project, for display."""


@record
class ProjectStatus:
    """Observed state of a project."""

    phase: LifecyclePhase | None = None
    """Lifecycle phase of the project."""
    message: str = ""
    """Why the project is not ready."""
    namespace: str = ""
    """Namespace of the project's workloads."""
    allocated: Amounts = Amounts()
    """Resources that its workloads hold in all node pools."""
    requested: Amounts = Amounts()
    """Resources that its workloads request in all node pools."""
    pools: Mapping[str, PoolUse] = EMPTY_MAP
    """Usage and fair share by node pool."""
    history: str = ""
    """Past usage as end:gpu:cpu:memory, in thousandths and MiB times seconds; later usage is `allocated`."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the status was computed from."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the project."""


@record
class Project:
    """A team or an activity with guaranteed GPUs. Every workload belongs to a project."""

    metadata: Metadata
    """Standard object metadata."""
    spec: ProjectSpec = ProjectSpec()
    """Quotas, limits and rules of the project."""
    status: ProjectStatus = ProjectStatus()
    """Observed state of the project; written by the platform."""
