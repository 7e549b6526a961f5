"""Which pods are one job, whoever made them: what a pod says about itself, in the scheduler's terms.

A job is a group of pods in one namespace. The first of these that a pod has names its group:

    label aliquot.dev/workload              our own workload's
    annotation pod-group-name               KAI's pod group                            podgroup:NAME
    spec.schedulingGroup.podGroupName       Kubernetes' own pod group                  podgroup:NAME
    owner Deployment (ReplicaSet), DaemonSet                                           each pod alone
    any other owner (Job, StatefulSet, PyTorchJob, ...)                                kind:NAME
    nobody                                                                             each pod alone

A group of a pod group, or of a framework whose pods need each other, is a gang: all of its pods or none, unless
something says how many are enough (the annotation aliquot.dev/min-available, the pod group, the framework's own
object). Pods of other owners come and go one by one. A StatefulSet is among those: it makes its second pod only when
the first runs.

A group whose name is not a workload's has a colon in it, which no name of an object can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot import labels
from aliquot.api import Pod
from aliquot.podspec.requests import controller_of, is_foreign

# Owners whose pods are of no use without each other.
_GANGS = ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MXJob", "JobSet")
_ALONE = ("ReplicaSet", "ReplicationController", "DaemonSet", "Node")
_POD_GROUP = "podgroup"


def group_of(pod: Pod) -> str:
    """The group a pod belongs to, within its namespace."""
    if workload := pod.metadata.labels.get(labels.WORKLOAD):
        return workload
    if group := _pod_group(pod):
        return f"{_POD_GROUP}:{group}"
    owner = controller_of(pod)
    if owner is None or owner.kind in _ALONE:
        return pod.metadata.name
    return f"{owner.kind.lower()}:{owner.name}"


def min_available_of(pods: Sequence[Pod], told: int | None = None) -> int | None:
    """How many of a group start together or not at all; None: all of them. `told` is what its pod group or its
    framework's object says."""
    said = [pod.metadata.annotations.get(labels.MIN_AVAILABLE, "") for pod in pods]
    # What is no number is as if nothing was said.
    if numbers := [int(text) for text in said if text.isdecimal()]:
        return max(numbers)
    if told is not None:
        return told
    pod = pods[0]
    if pod.metadata.labels.get(labels.WORKLOAD) or _pod_group(pod):
        return None
    owner = controller_of(pod)
    return None if owner is None or owner.kind in _GANGS else 1


def project_of(pods: Sequence[Pod], namespace: Mapping[str, str]) -> str:
    """Whom a group is charged to, with the labels of its namespace; empty: nobody."""
    return charged_project(
        is_foreign(pods[0]), labels.project_of(pods[0].metadata.labels), labels.project_of(namespace)
    )


def charged_project(foreign: bool, said: str, owner: str) -> str:
    """Whom pods are charged to: what they say themselves, and whose their namespace is.

    The namespace's project, because rights hang from namespaces: a label on a pod must not spend another's quota. In
    a namespace of no project the pod's label names one. Pods of other schedulers are charged only where they say so.
    """
    if foreign:
        return said if said and owner in ("", said) else ""
    return owner or said


def pools_of(pods: Sequence[Pod]) -> tuple[str, ...]:
    """The node pool that a pod names."""
    marks = pods[0].metadata.labels
    return next(((marks[key],) for key in (labels.NODE_POOL, *labels.NODE_POOL_ALIASES) if marks.get(key)), ())


def _pod_group(pod: Pod) -> str:
    upstream = (pod.spec.scheduling_group or {}).get("podGroupName")
    return pod.metadata.annotations.get(labels.POD_GROUP) or str(upstream or "")
