"""Who shares the machines: departments and projects with their quotas.

A quota is per node pool. The bare fields of a department or project (`quota`, `limit`, ...) are those of pool
`default`; other pools stand under `pools`. `terms` gives the ones that hold in a pool, wherever they were written.
"""

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
    """What a department is due."""

    quota: Quota = Quota()
    """What is guaranteed in pool default, over all projects of the department."""
    limit: Amounts = Amounts()
    """The most that its projects may use together in pool default."""
    over_quota: bool = True
    """Whether its projects together may go beyond the department's quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Share of idle resources against other departments, where the scheduling policy splits by weight."""
    priority: Int32 | None = None
    """Departments with a higher number are served first when idle resources are given out; 100 unless given."""
    pools: Pools = EMPTY_MAP
    """The same per node pool, for pools other than default."""
    default_pools: Strings = ()
    """Node pools that workloads try, in this order, where neither they nor their project say."""
    node_types: NodeTypes = NodeTypes()
    """Node groups its workloads are held to."""
    rules: Rules = Rules()
    """Time limits for every project of the department; a project may only tighten them."""
    reclaim_min_runtime: Duration | None = None
    """How long its workloads run before another queue may take their resources back."""
    preempt_min_runtime: Duration | None = None
    """How long its workloads run before a more important one of the same project may stop them."""
    description: Text = ""
    """For people."""


@record
class DepartmentStatus:
    """How a department stands."""

    phase: LifecyclePhase | None = None
    """Whether it is ready for use."""
    message: str = ""
    """Why it is not, when it is not."""
    projects: Count = 0
    """How many projects it has."""
    allocated: Amounts = Amounts()
    """Held by its workloads in all pools."""
    requested: Amounts = Amounts()
    """Asked for by its workloads in all pools."""
    pools: Mapping[str, PoolUse] = EMPTY_MAP
    """The same per node pool."""
    observed_generation: Int64 | None = None
    """The generation of the spec this status is about."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class Department:
    """A part of the organisation that holds projects, with a quota over all of them."""

    metadata: Metadata
    """Name and marks."""
    spec: DepartmentSpec = DepartmentSpec()
    """What the department is due."""
    status: DepartmentStatus = DepartmentStatus()
    """How the department stands; written by the platform."""
