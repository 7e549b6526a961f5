"""Departments: groups of projects with a common quota."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.api.amounts import Amounts, Quota, WeightsOrNumber
from aliquot.api.conditions import Condition, LifecyclePhase
from aliquot.api.field_types import EMPTY_MAP, Count, Duration, Int32, Int64, Strings, Text
from aliquot.api.metadata import Metadata
from aliquot.api.queue import NodeTypes, Pools, PoolUse, Rules
from aliquot.api.serialization import record


@record
class DepartmentSpec:
    """Quotas, limits and rules of a department."""

    quota: Quota = Quota()
    """Guaranteed resources in node pool default, over all projects of the department."""
    limit: Amounts = Amounts()
    """Maximum resources that its projects may use together in node pool default."""
    over_quota: bool = True
    """Whether its projects together may use more than the department's quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Weight for idle resources against other departments, if the policy divides by weight."""
    priority: Int32 | None = None
    """Priority for idle resources; departments with a higher number come first; defaults to 100."""
    pools: Pools = EMPTY_MAP
    """Quota, limit, weight and priority in node pools other than default, by pool."""
    default_pools: Strings = ()
    """Node pools to try, in this order, for workloads whose project does not specify any."""
    node_types: NodeTypes = NodeTypes()
    """Node types on which its workloads may run."""
    rules: Rules = Rules()
    """Time limits for every project of the department. A project may only set lower ones."""
    reclaim_min_runtime: Duration | None = None
    """How long its workloads run before another queue may reclaim their resources."""
    preempt_min_runtime: Duration | None = None
    """How long its workloads run before a higher priority of the same project preempts them."""
    description: Text = ""
    """Description of the department, for display."""


@record
class DepartmentStatus:
    """Observed state of a department."""

    phase: LifecyclePhase | None = None
    """Lifecycle phase of the department."""
    message: str = ""
    """Why the department is not ready."""
    projects: Count = 0
    """Number of projects in the department."""
    allocated: Amounts = Amounts()
    """Resources that its workloads hold in all node pools."""
    requested: Amounts = Amounts()
    """Resources that its workloads request in all node pools."""
    pools: Mapping[str, PoolUse] = EMPTY_MAP
    """Usage and fair share by node pool."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the status was computed from."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the department."""


@record
class Department:
    """A part of the organization that contains projects and has a quota over all of them."""

    metadata: Metadata
    """Standard object metadata."""
    spec: DepartmentSpec = DepartmentSpec()
    """Quotas, limits and rules of the department."""
    status: DepartmentStatus = DepartmentStatus()
    """Observed state of the department; written by the platform."""
