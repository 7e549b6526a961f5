"""Who shares the machines: departments and projects with their quotas.

A quota is per node pool. The bare fields of a department or project (`quota`, `limit`, ...) are those of pool
`default`; other pools stand under `pools`. `terms` gives the ones that hold in a pool, wherever they were written.
"""

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
    """What a project is due, and the rules for its workloads."""

    department: Label | None = None
    """The department it belongs to; `default` unless given."""
    quota: Quota = Quota()
    """What is guaranteed in pool default."""
    limit: Amounts = Amounts()
    """The most that may be used at once in pool default; no limit for what is absent."""
    over_quota: bool = True
    """Whether idle resources of others may be used beyond the quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Share of idle resources against other projects, where the scheduling policy splits by weight."""
    priority: Int32 | None = None
    """Projects with a higher number are served first when idle resources are given out; 100 unless given."""
    pools: Pools = EMPTY_MAP
    """The same per node pool, for pools other than default."""
    default_pools: Strings = ()
    """Node pools that its workloads try, in this order, where they name none."""
    node_types: NodeTypes = NodeTypes()
    """Node groups its workloads are held to."""
    rules: Rules = Rules()
    """Time limits for workloads submitted from now on."""
    reclaim_min_runtime: Duration | None = None
    """How long its workloads run before another project may take their resources back."""
    preempt_min_runtime: Duration | None = None
    """How long its workloads run before a more important one of the project may stop them."""
    namespace: Label | None = None
    """An existing namespace to use; `runai-<project>` unless given."""
    description: Text = ""
    """For people."""


@record
class ProjectStatus:
    """How a project stands."""

    phase: LifecyclePhase | None = None
    """Whether it is ready for use."""
    message: str = ""
    """Why it is not, when it is not."""
    namespace: str = ""
    """The namespace that holds its workloads."""
    allocated: Amounts = Amounts()
    """Held by its workloads in all pools."""
    requested: Amounts = Amounts()
    """Asked for by its workloads in all pools."""
    pools: Mapping[str, PoolUse] = EMPTY_MAP
    """The same per node pool."""
    history: str = ""
    """What was held over time, as end:gpu:cpu:memory in thousandths and MiB times seconds; since then, `allocated`."""
    observed_generation: Int64 | None = None
    """The generation of the spec this status is about."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class Project:
    """A team or an activity, with its guaranteed GPUs. Every workload belongs to one."""

    metadata: Metadata
    """Name and marks."""
    spec: ProjectSpec = ProjectSpec()
    """What the project is due."""
    status: ProjectStatus = ProjectStatus()
    """How the project stands; written by the platform."""
