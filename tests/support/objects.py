"""Builders of typed API objects. Tests name only the fields that matter to them.

Manifests for kubectl are in `support.kubernetes.manifests`, documents for store drivers in `support.stores.namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aliquot.api import DeviceShare, Metadata, Pod, Project, Workload, shares_text
from aliquot.api.metadata import Owner
from aliquot.api.pod import Container, ContainerStatus, PodCondition, PodSpec, PodStatus, Resources
from aliquot.api.project import ProjectSpec
from aliquot.api.workload import WorkloadSpec, WorkloadStatus
from aliquot.labels import DEVICES, GPU_RESOURCE

NAMESPACE = "runai-a"


def pod(
    name: str = "w-0-0",
    *,
    namespace: str = NAMESPACE,
    uid: str = "p1",
    version: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Owner | None = None,
    deleted: float | None = None,
    node: str = "",
    gpus: int = 0,
    shares: Sequence[DeviceShare] = (),
    phase: str = "",
    conditions: Sequence[PodCondition] = (),
    container_statuses: Sequence[ContainerStatus] = (),
    **status: Any,
) -> Pod:
    """A pod with one container. `gpus` are whole GPUs that it requests, `shares` the devices that it was given."""
    limits = {GPU_RESOURCE: str(gpus)} if gpus else {}
    devices = {DEVICES: shares_text(shares)} if shares else {}
    metadata = Metadata(
        name=name,
        namespace=namespace,
        uid=uid,
        version=version,
        labels=labels or {},
        annotations={**(annotations or {}), **devices},
        owners=(owner,) if owner else (),
        deleted=deleted,
    )
    container = Container(name="main", image="python", resources=Resources(limits=limits))
    observed = PodStatus(
        phase=phase, conditions=tuple(conditions), container_statuses=tuple(container_statuses), **status
    )
    return Pod(metadata=metadata, spec=PodSpec(node_name=node, containers=(container,)), status=observed)


def workload(name: str = "w", *, status: WorkloadStatus | None = None, **spec: Any) -> Workload:
    metadata = Metadata(name=name, namespace=NAMESPACE, uid="u", generation=1)
    wanted = WorkloadSpec(**{"image": "python", **spec})
    return Workload(metadata=metadata, spec=wanted, status=status or WorkloadStatus())


def project(name: str = "team-a", **spec: Any) -> Project:
    return Project(metadata=Metadata(name=name), spec=ProjectSpec(**spec))
