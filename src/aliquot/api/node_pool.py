"""Who shares the machines: departments and projects with their quotas.

A quota is per node pool. The bare fields of a department or project (`quota`, `limit`, ...) are those of pool
`default`; other pools stand under `pools`. `terms` gives the ones that hold in a pool, wherever they were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from aliquot.api.amounts import Amounts
from aliquot.api.conditions import Condition, LifecyclePhase
from aliquot.api.field_types import Int64, Strings, Text
from aliquot.api.metadata import Metadata
from aliquot.api.placement_strategy import Placement
from aliquot.api.serialization import record
from aliquot.errors import Fault

DEFAULT_POOL = "default"


@record
class NodePoolSpec:
    """Which nodes are in the pool, and how they are used."""

    label_key: str = ""
    """Nodes with this label belong to the pool."""
    label_value: str = ""
    """The value the label must have."""
    placement: Placement = Placement()
    """Whether pods are packed or spread here; wins over the scheduling policy."""
    topology: Strings = ()
    """Node labels that say how near nodes are to each other, outermost first."""
    workloads_per_gpu: Annotated[int, Field(ge=2, le=5)] | None = None
    """How many bursting workloads may share a GPU when the node spreads them; off unless given."""
    description: Text = ""
    """For people."""


@record
class NodePoolStatus:
    """How a pool stands."""

    phase: LifecyclePhase | None = None
    """Whether it is ready for use."""
    message: str = ""
    """Why it is not, when it is not."""
    nodes: Strings = ()
    """Names of its nodes."""
    total: Amounts = Amounts()
    """What its nodes have."""
    allocated: Amounts = Amounts()
    """What is held by workloads."""
    history: str = ""
    """What its nodes had over time, as a project's history says what was held."""
    observed_generation: Int64 | None = None
    """The generation of the spec this status is about."""
    conditions: tuple[Condition, ...] = ()
    """What is true about it."""


@record
class NodePool:
    """A set of nodes with a fair share of its own. Nodes that no other pool selects are in pool `default`."""

    metadata: Metadata
    """Name and marks."""
    spec: NodePoolSpec = NodePoolSpec()
    """Which nodes are in the pool."""
    status: NodePoolStatus = NodePoolStatus()
    """How the pool stands; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        if self.metadata.name != DEFAULT_POOL and not self.spec.label_key:
            yield Fault("spec.labelKey", f"is required for every pool but {DEFAULT_POOL}")
