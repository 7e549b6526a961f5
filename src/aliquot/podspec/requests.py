"""What a pod says about its scheduling: its resource request, its priority, its scheduler and its controller.

Works for any pod, whether we built it or not. Whole GPUs are the resource `nvidia.com/gpu`. Fractions are annotations,
because no resource can say 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aliquot import labels, units
from aliquot.api import Container, Owner, Pod
from aliquot.api.pod import PodSpec
from aliquot.planner import Request
from aliquot.units import GPU

PRIORITY_VALUES = {"train": 50, "build-preemptible": 75, "interactive-preemptible": 75, "build": 100, "inference": 125}
_NON_PREEMPTIBLE = 100  # from this priority on


def request_of(pod: Pod) -> Request:
    """The resources that a pod asks for. `ValueError` where an amount cannot be read."""
    total = _requested(pod.spec)
    annotations = pod.metadata.annotations
    devices = int(_first(annotations, (labels.GPU_DEVICES, *labels.GPU_DEVICES_ALIASES)) or "1")
    fraction = _first(annotations, (labels.GPU_FRACTION, *labels.GPU_FRACTION_ALIASES))
    memory_mib = _first(annotations, (labels.GPU_MEMORY_MIB, *labels.GPU_MEMORY_ALIASES))
    if fraction:
        return Request(devices=devices, milli=units.milli(fraction), cpu=total.cpu, memory=total.memory)
    if memory_mib:
        return Request(devices=devices, memory_mib=int(memory_mib), cpu=total.cpu, memory=total.memory)
    return Request(devices=total.gpus, milli=GPU if total.gpus else 0, cpu=total.cpu, memory=total.memory)


def is_preemptible(pod: Pod) -> bool:
    """Whether we may evict the pod for others. Only its priority decides; pods of other schedulers are theirs to
    stop."""
    return priority_of(pod) < _NON_PREEMPTIBLE and not is_foreign(pod)


def priority_of(pod: Pod) -> int:
    """The priority by the pod's label, its class, or its kind. Kubernetes writes 0 where none was given."""
    for name in (pod.metadata.labels.get(labels.PRIORITY_CLASS, ""), pod.spec.priority_class_name):
        if name in PRIORITY_VALUES:
            return PRIORITY_VALUES[name]
    if pod.spec.priority_class_name or pod.spec.priority:
        return pod.spec.priority or 0
    return PRIORITY_VALUES[default_priority(pod)]


def default_priority(pod: Pod) -> str:
    """The priority class of a pod that has none."""
    pod_labels = pod.metadata.labels
    if labels.KNATIVE_REVISION in pod_labels:
        return "inference"
    if labels.NOTEBOOK in pod_labels:
        return "build"
    owner = controller_of(pod)
    # The ReplicaSet of a Deployment labels its pods with a hash; a ReplicaSet of its own does not.
    is_served = owner is not None and owner.kind == "ReplicaSet" and labels.POD_TEMPLATE_HASH in pod_labels
    return "inference" if is_served else "train"


def is_foreign(pod: Pod) -> bool:
    """Whether another scheduler places the pod. On one machine there is no other, and the name may be empty."""
    return pod.spec.scheduler_name not in ("", *labels.SCHEDULER_NAMES)


def controller_of(pod: Pod) -> Owner | None:
    """The owner that manages the pod, if it has one."""
    return next((owner for owner in pod.metadata.owners if owner.controller), None)


class _Amounts(NamedTuple):
    gpus: int = 0  # whole ones
    cpu: int = 0  # milli-CPU
    memory: int = 0  # bytes

    def plus(self, other: _Amounts) -> _Amounts:
        return _Amounts(self.gpus + other.gpus, self.cpu + other.cpu, self.memory + other.memory)

    def larger(self, other: _Amounts) -> _Amounts:
        return _Amounts(max(self.gpus, other.gpus), max(self.cpu, other.cpu), max(self.memory, other.memory))


def _requested(spec: PodSpec) -> _Amounts:
    """Counts as Kubernetes does. Containers that run together add up. Init containers run one after the other, so the
    largest counts, next to the sidecars started before it."""
    sidecars, init_peak = _Amounts(), _Amounts()
    for container in spec.init_containers:
        with_sidecars = _of_container(container).plus(sidecars)
        if container.restart_policy == "Always":
            sidecars = with_sidecars
        init_peak = init_peak.larger(with_sidecars)
    running = sidecars
    for container in spec.containers:
        running = running.plus(_of_container(container))
    return running.larger(init_peak).plus(_quantities(spec.overhead, {}))


def _of_container(container: Container) -> _Amounts:
    return _quantities(container.resources.requests, container.resources.limits)


def _quantities(requests: Mapping[str, str], limits: Mapping[str, str]) -> _Amounts:
    gpus = limits.get(labels.GPU_RESOURCE, requests.get(labels.GPU_RESOURCE, "0"))
    cpu = units.milli(requests.get("cpu", limits.get("cpu", "0")))
    memory = units.quantity(requests.get("memory", limits.get("memory", "0")))
    return _Amounts(int(units.quantity(gpus)), cpu, memory)


def _first(annotations: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((annotations[key] for key in keys if key in annotations), "")
