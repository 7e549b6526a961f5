"""What departments and projects have in common: quotas per node pool, time limits and usage.

Both are queues of the scheduler. The top-level fields of their specs (`quota`, `limit`, ...) apply to node pool
`default`; `pools` has those of other pools. `terms_in_pool` returns the ones of any pool.
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
    """Quota, limit, weight and priority of a queue in one node pool."""

    quota: Quota = Quota()
    """Guaranteed resources."""
    limit: Amounts = Amounts()
    """Maximum resources that may be used at once; a resource that is absent has no limit."""
    over_quota: bool = True
    """Whether the queue may use idle resources of others beyond its quota."""
    over_quota_weight: WeightsOrNumber | None = None
    """Weight for idle resources against other queues, if the scheduling policy divides by weight."""
    priority: Int32 | None = None
    """Priority for idle resources; queues with a higher number come first; defaults to 100."""


_DEFAULT_IN_POOLS = "must not name pool default: the quota beside pools is the one of pool default"


def _no_default_pool(pools: Mapping[str, Terms]) -> Mapping[str, Terms]:
    if DEFAULT_POOL in pools:
        raise ValueError(_DEFAULT_IN_POOLS)
    return pools


def _add_cel_rule(schema: Json) -> None:
    schema["x-crd"] = {"x-kubernetes-validations": [{"rule": "!('default' in self)", "message": _DEFAULT_IN_POOLS}]}


# More pools than this are a mistake. Kubernetes requires a bound for maps whose values have CEL rules.
_MAX_POOLS = 64
Pools = Annotated[
    Mapping[str, Terms],
    Field(max_length=_MAX_POOLS, json_schema_extra=_add_cel_rule),
    AfterValidator(_no_default_pool),
]


@record
class NodeTypes:
    """Node types (values of the node label `run.ai/type`) on which workloads may run."""

    training: Strings = ()
    """Node types for training workloads; any node if empty."""
    interactive: Strings = ()
    """Node types for interactive workloads; any node if empty."""


@record
class Rule:
    """Time limits for one type of workload."""

    duration_limit: Duration | None = None
    """How long a workload may be Running before it is stopped; no limit unless set."""
    idle_limit: Duration | None = None
    """How long the GPUs of a workload may be idle before it is stopped; no limit unless set."""


@record
class Rules:
    """Time limits per type of workload."""

    training: Rule | None = None
    """Limits for training workloads."""
    interactive: Rule | None = None
    """Limits for interactive workloads that are not preemptible."""
    interactive_preemptible: Rule | None = None
    """Limits for interactive workloads that are preemptible."""


@record
class PoolUse:
    """Usage and fair share of a queue in one node pool."""

    allocated: Amounts = Amounts()
    """Resources that its workloads hold."""
    requested: Amounts = Amounts()
    """Resources that its running and waiting workloads request."""
    fair_share: Amounts = Amounts()
    """Quota plus the queue's share of idle resources, as the scheduler last computed it."""


_DEFAULT_TERMS = Terms()


def terms_in_pool(spec: DepartmentSpec | ProjectSpec, pool: str = DEFAULT_POOL) -> Terms:
    """The terms of a department or project in a pool. In a pool that its spec does not name it has no quota, but may
    use idle resources."""
    if pool != DEFAULT_POOL:
        return spec.pools.get(pool, _DEFAULT_TERMS)
    return Terms(
        quota=spec.quota,
        limit=spec.limit,
        over_quota=spec.over_quota,
        over_quota_weight=spec.over_quota_weight,
        priority=spec.priority,
    )
