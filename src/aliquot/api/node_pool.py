"""Node pools: sets of nodes that are shared fairly on their own."""

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
    """The nodes of a pool, and how pods are placed on them."""

    label_key: str = ""
    """Key of the node label that selects the nodes of the pool."""
    label_value: str = ""
    """Value of the node label that selects the nodes of the pool."""
    placement: Placement = Placement()
    """Placement strategies in the pool; they override those of the scheduling policy."""
    topology: Strings = ()
    """Node labels of the topology levels, from the outermost to the innermost."""
    workloads_per_gpu: Annotated[int, Field(ge=2, le=5)] | None = None
    """Number of bursting workloads that may share a GPU if the node spreads them; off unless set."""
    description: Text = ""
    """Description of the pool, for display."""


@record
class NodePoolStatus:
    """Observed state of a node pool."""

    phase: LifecyclePhase | None = None
    """Lifecycle phase of the pool."""
    message: str = ""
    """Why the pool is not ready."""
    nodes: Strings = ()
    """Names of the nodes in the pool."""
    total: Amounts = Amounts()
    """Capacity of the nodes in the pool."""
    allocated: Amounts = Amounts()
    """Resources that workloads hold in the pool."""
    history: str = ""
    """Past capacity of the pool, in the format of a project's history."""
    observed_generation: Int64 | None = None
    """Generation of the spec that the status was computed from."""
    conditions: tuple[Condition, ...] = ()
    """Conditions of the pool."""


@record
class NodePool:
    """A set of nodes with its own quotas. Nodes that no other pool selects belong to pool `default`."""

    metadata: Metadata
    """Standard object metadata."""
    spec: NodePoolSpec = NodePoolSpec()
    """The nodes of the pool."""
    status: NodePoolStatus = NodePoolStatus()
    """Observed state of the pool; written by the platform."""

    def faults(self) -> Iterator[Fault]:
        if self.metadata.name != DEFAULT_POOL and not self.spec.label_key:
            yield Fault("spec.labelKey", f"is required for every pool but {DEFAULT_POOL}")
