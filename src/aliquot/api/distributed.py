"""Distributed training: the workers of a workload, and a master that may differ from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from aliquot.api.compute import Compute
from aliquot.api.field_types import EMPTY_MAP, Labels, Positive, Strings
from aliquot.api.scheduling_constraints import NamedToleration
from aliquot.api.security import Security
from aliquot.api.serialization import record
from aliquot.api.storage import Variable
from aliquot.errors import Fault


@record
class Master:
    """Settings of the master (the launcher, for MPI). A field that is absent is the same as in the workers."""

    image: str | None = None
    """Container image."""
    command: Strings = ()
    """Entrypoint that replaces the image's."""
    args: Strings = ()
    """Arguments of the entrypoint."""
    environment: tuple[Variable, ...] = ()
    """Environment variables in addition to the workers'; `exclude` removes one."""
    compute: Compute = Compute()
    """Resources that the master requests."""
    no_pvcs: bool | None = None
    """Whether the master runs without the workers' volume claims."""
    labels: Labels = EMPTY_MAP
    """Labels of the master's pod."""
    annotations: Labels = EMPTY_MAP
    """Annotations of the master's pod."""
    node_type: str | None = None
    """Node type (value of the node label run.ai/type) on which the master runs."""
    node_selector: Labels = EMPTY_MAP
    """Node labels that the master requires."""
    tolerations: tuple[NamedToleration, ...] = ()
    """Tolerations of the master's pod."""
    security: Security = Security()
    """Security settings of the master."""


@record
class Distributed:
    """Distributed training. The workload's own fields apply to each worker."""

    framework: Literal["mpi", "pytorch", "tensorflow", "xgboost"]
    """Framework that connects the pods."""
    workers: Positive | None = None
    """Number of workers."""
    min_replicas: Positive | None = None
    """Minimum number of workers with which training continues (PyTorch)."""
    max_replicas: Positive | None = None
    """Maximum number of workers (PyTorch)."""
    slots_per_worker: Positive | None = None
    """Number of processes per worker (MPI); defaults to one per GPU."""
    no_master: bool | None = None
    """Whether there is no pod besides the workers (PyTorch, TensorFlow)."""
    master: Master = Master()
    """Settings of the master."""
    clean_pod_policy: Literal["Running", "All", "None"] | None = None
    """Which pods are deleted when training has finished; defaults to Running."""

    def faults(self, path: str) -> Iterator[Fault]:
        least, most = self.min_replicas, self.max_replicas
        if (least or most) and self.framework != "pytorch":
            yield Fault(path, "minReplicas and maxReplicas are for framework pytorch only")
        if least is not None and most is not None and least > most:
            yield Fault(f"{path}.minReplicas", "must not be more than maxReplicas")
        if self.slots_per_worker is not None and self.framework != "mpi":
            yield Fault(f"{path}.slotsPerWorker", "is for framework mpi only")
        if self.no_master and self.framework not in ("pytorch", "tensorflow"):
            yield Fault(f"{path}.noMaster", "is for frameworks pytorch and tensorflow only")
        yield from self.master.compute.faults(f"{path}.master.compute")
