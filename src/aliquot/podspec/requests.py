"""What a pod says about its scheduling: who schedules it, who controls it, which priority class it gets."""

from __future__ import annotations

from aliquot import labels
from aliquot.api import Owner, Pod


def is_foreign(pod: Pod) -> bool:
    """Whether another scheduler decides about it. On one machine nobody else does, and pods need not say who."""
    return pod.spec.scheduler_name not in ("", *labels.SCHEDULER_NAMES)


def default_priority(pod: Pod) -> str:
    """The priority class of a pod that has none."""
    marks = pod.metadata.labels
    if labels.KNATIVE_REVISION in marks:
        return "inference"
    if labels.NOTEBOOK in marks:
        return "build"
    owner = controller_of(pod)
    # A Deployment's ReplicaSet marks its pods; one that somebody made alone does not.
    served = owner is not None and owner.kind == "ReplicaSet" and labels.POD_TEMPLATE_HASH in marks
    return "inference" if served else "train"


def controller_of(pod: Pod) -> Owner | None:
    """The owner that manages the pod, if it has one."""
    return next((owner for owner in pod.metadata.owners if owner.controller), None)
