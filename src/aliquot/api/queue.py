"""Who shares the machines: departments and projects with their quotas.

A quota is per node pool. The bare fields of a department or project (`quota`, `limit`, ...) are those of pool
`default`; other pools stand under `pools`. `terms` gives the ones that hold in a pool, wherever they were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from aliquot.api.amounts import Amounts, Quota, WeightsOrNumber
from aliquot.api.field_types import Duration, Int32, Strings
from aliquot.api.node_pool import DEFAULT_POOL
from aliquot.api.serialization import Json, record

if TYPE_CHECKING:
    from aliquot.api.department import DepartmentSpec
    from aliquot.api.project import ProjectSpec


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
class PoolUse:
    """What a queue has and is due in one node pool."""

    allocated: Amounts = Amounts()
    """Held by its workloads."""
    requested: Amounts = Amounts()
    """Asked for by its workloads, running or waiting."""
    fair_share: Amounts = Amounts()
    """Quota plus its part of what is idle, as the scheduler last computed it."""


_UNNAMED = Terms()


def terms_in_pool(spec: DepartmentSpec | ProjectSpec, pool: str = DEFAULT_POOL) -> Terms:
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
