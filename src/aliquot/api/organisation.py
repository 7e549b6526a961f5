"""Who shares the machines: departments and projects with their quotas.

A quota is per node pool. The bare fields of a department or project (`quota`, `limit`, ...) are those of pool
`default`; other pools stand under `pools`. `terms` gives the ones that hold in a pool, wherever they were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from aliquot.api.base import NOTHING, Count, Duration, Int32, Int64, Json, Label, Metadata, Strings, Text, record
from aliquot.api.common import Amounts, Condition, Quota, WeightsOrNumber

DEFAULT_POOL = "default"


@record
class Terms:
    """What a queue may use in one node pool."""

    quota: Quota = Quota()
    """What is guaranteed."""
    limit: Amounts = Amounts()
    """The most that may be used at once; no limit for what is absent."""
    over_quota: bool = True
    """Whether idle resources of others may be used beyond the quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Share of idle resources against other queues, where the scheduling policy splits by weight."""
    priority: Int32 | None = None
    """Queues with a higher number are served first when idle resources are given out; 100 unless given."""


_DEFAULT_TWICE = "must not name pool default: the quota beside pools is the one of pool default"


def _no_default_pool(pools: Mapping[str, Terms]) -> Mapping[str, Terms]:
    if DEFAULT_POOL in pools:
        raise ValueError(_DEFAULT_TWICE)
    return pools


def _say_so_on_kubernetes(schema: Json) -> None:
    schema["x-crd"] = {"x-kubernetes-validations": [{"rule": "!('default' in self)", "message": _DEFAULT_TWICE}]}


# More pools than this is a mistake; and Kubernetes wants a bound where it runs rules for each.
_MOST_POOLS = 64
Pools = Annotated[
    Mapping[str, Terms],
    Field(max_length=_MOST_POOLS, json_schema_extra=_say_so_on_kubernetes),
    AfterValidator(_no_default_pool),
]


@record
class NodeTypes:
    """Node groups (values of the label `run.ai/type`) that workloads are held to."""

    training: Strings = ()
    """Groups for training; any node when empty."""
    interactive: Strings = ()
    """Groups for interactive workloads; any node when empty."""


@record
class Rule:
    """How long workloads of one type may go on."""

    duration_limit: Duration | None = None
    """Stopped after this much time in Running; no limit unless given."""
    idle_limit: Duration | None = None
    """Stopped after its GPUs were idle for this long; no limit unless given."""


@record
class Rules:
    """Time limits per type of workload."""

    training: Rule | None = None
    """For training."""
    interactive: Rule | None = None
    """For interactive workloads that are never preempted."""
    interactive_preemptible: Rule | None = None
    """For interactive workloads that may be preempted."""


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
    pools: Pools = NOTHING
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
class PoolUse:
    """What a queue has and is due in one node pool."""

    allocated: Amounts = Amounts()
    """Held by its workloads."""
    requested: Amounts = Amounts()
    """Asked for by its workloads, running or waiting."""
    fair_share: Amounts = Amounts()
    """Quota plus its part of what is idle, as the scheduler last computed it."""


QueuePhase = Literal["Creating", "Updating", "Ready", "Failed", "Deleting"]


@record
class DepartmentStatus:
    """How a department stands."""

    phase: QueuePhase | None = None
    """Whether it is ready for use."""
    message: str = ""
    """Why it is not, when it is not."""
    projects: Count = 0
    """How many projects it has."""
    allocated: Amounts = Amounts()
    """Held by its workloads in all pools."""
    requested: Amounts = Amounts()
    """Asked for by its workloads in all pools."""
    pools: Mapping[str, PoolUse] = NOTHING
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
    pools: Pools = NOTHING
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

    phase: QueuePhase | None = None
    """Whether it is ready for use."""
    message: str = ""
    """Why it is not, when it is not."""
    namespace: str = ""
    """The namespace that holds its workloads."""
    allocated: Amounts = Amounts()
    """Held by its workloads in all pools."""
    requested: Amounts = Amounts()
    """Asked for by its workloads in all pools."""
    pools: Mapping[str, PoolUse] = NOTHING
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


_UNNAMED = Terms()


def terms(spec: DepartmentSpec | ProjectSpec, pool: str = DEFAULT_POOL) -> Terms:
    """What a department or project may use in a pool. One it does not name: no quota, but over quota."""
    if pool != DEFAULT_POOL:
        return spec.pools.get(pool, _UNNAMED)
    return Terms(
        quota=spec.quota,
        limit=spec.limit,
        over_quota=spec.over_quota,
        over_quota_weight=spec.over_quota_weight,
        priority=spec.priority,
    )
