"""Which pods form one job, whichever controller created them.

A job is a group of pods in one namespace. The first of these that a pod has names its group:

    label aliquot.dev/workload              our own workload                           NAME
    annotation pod-group-name               KAI's pod group                            podgroup:NAME
    spec.schedulingGroup.podGroupName       Kubernetes' own pod group                  podgroup:NAME
    owner Deployment (ReplicaSet), DaemonSet                                           each pod alone
    any other owner (Job, StatefulSet, PyTorchJob, ...)                                kind:NAME
    no owner                                                                           each pod alone

The pods of a pod group, or of a framework whose pods need each other, are a gang: all of them start or none, unless
something says how many are enough (the annotation aliquot.dev/min-available, the pod group, the framework's own
object). Pods of other owners start one by one. A StatefulSet is among those: it creates its second pod only when the
first one runs.

A group that is not a workload has a colon in its name, which no object name can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot import labels
from aliquot.api import Pod
from aliquot.podspec.requests import controller_of, is_foreign

# Owners whose pods are useless without each other.
_GANG_OWNERS = ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob", "JobSet")
_OWNERS_OF_SINGLE_PODS = ("ReplicaSet", "ReplicationController", "DaemonSet", "Node")
_POD_GROUP = "podgroup"


def group_of(pod: Pod) -> str:
    """The group of a pod within its namespace."""
    if workload := pod.metadata.labels.get(labels.WORKLOAD):
        return workload
    if pod_group := _pod_group(pod):
        return f"{_POD_GROUP}:{pod_group}"
    owner = controller_of(pod)
    if owner is None or owner.kind in _OWNERS_OF_SINGLE_PODS:
        return pod.metadata.name
    return f"{owner.kind.lower()}:{owner.name}"


def min_available_of(pods: Sequence[Pod], from_object: int | None = None) -> int | None:
    """How many pods of a group start together or not at all; None means all of them. `from_object`: the number in its
    pod group or in the framework's object."""
    texts = [pod.metadata.annotations.get(labels.MIN_AVAILABLE, "") for pod in pods]
    # An annotation that is not a number counts as absent.
    if numbers := [int(text) for text in texts if text.isdecimal()]:
        return max(numbers)
    if from_object is not None:
        return from_object
    pod = pods[0]
    if pod.metadata.labels.get(labels.WORKLOAD) or _pod_group(pod):
        return None
    owner = controller_of(pod)
    return None if owner is None or owner.kind in _GANG_OWNERS else 1


def project_of(pods: Sequence[Pod], namespace_labels: Mapping[str, str]) -> str:
    """The project that a group is charged to; empty when it is charged to none."""
    pod = pods[0]
    return charged_project(is_foreign(pod), labels.project_of(pod.metadata.labels), labels.project_of(namespace_labels))


def charged_project(foreign: bool, pod_project: str, namespace_project: str) -> str:
    """The project that pods are charged to, from their own label and from the project of their namespace.

    The namespace decides, because permissions are granted by namespace: a label on a pod must not spend another
    project's quota. In a namespace without a project the pod's label decides. Pods of other schedulers (`foreign`) are
    charged only where their label says so.
    """
    if foreign:
        return pod_project if pod_project and namespace_project in ("", pod_project) else ""
    return namespace_project or pod_project


def pools_of(pods: Sequence[Pod]) -> tuple[str, ...]:
    """The node pool that the pod's label names, as the only element; empty when no label names one."""
    pod_labels = pods[0].metadata.labels
    keys = (labels.NODE_POOL, *labels.NODE_POOL_ALIASES)
    return next(((pod_labels[key],) for key in keys if pod_labels.get(key)), ())


def _pod_group(pod: Pod) -> str:
    upstream = (pod.spec.scheduling_group or {}).get("podGroupName")
    return pod.metadata.annotations.get(labels.POD_GROUP) or str(upstream or "")
