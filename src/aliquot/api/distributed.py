"""What distributed training adds to a workload: its workers, and a master that may differ from them."""

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
    """What differs in the master (the launcher, for MPI). What is absent is as in the workers."""

    image: str | None = None
    """Container image."""
    command: Strings = ()
    """Program to run instead of the image's."""
    args: Strings = ()
    """Its arguments."""
    environment: tuple[Variable, ...] = ()
    """Environment variables on top of the workers'; `exclude` takes one away."""
    compute: Compute = Compute()
    """What it asks for."""
    no_pvcs: bool | None = None
    """Whether it goes without the workers' volume claims."""
    labels: Labels = EMPTY_MAP
    """Labels of its pod."""
    annotations: Labels = EMPTY_MAP
    """Annotations of its pod."""
    node_type: str | None = None
    """Node group it runs on."""
    node_selector: Labels = EMPTY_MAP
    """Node labels it needs."""
    tolerations: tuple[NamedToleration, ...] = ()
    """Taints it bears."""
    security: Security = Security()
    """As whom it runs."""


@record
class Distributed:
    """What distributed training adds. The workload's own fields are those of each worker."""

    framework: Literal["mpi", "pytorch", "tensorflow", "xgboost"]
    """Which framework connects the pods."""
    workers: Positive | None = None
    """How many workers there are."""
    min_replicas: Positive | None = None
    """Fewest workers it goes on with (PyTorch)."""
    max_replicas: Positive | None = None
    """Most workers it grows to (PyTorch)."""
    slots_per_worker: Positive | None = None
    """Processes per worker (MPI); one per GPU unless given."""
    no_master: bool | None = None
    """Whether there is no pod besides the workers (PyTorch, TensorFlow)."""
    master: Master = Master()
    """What differs in the master."""
    clean_pod_policy: Literal["Running", "All", "None"] | None = None
    """Which pods go when it has finished; Running unless given."""

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
