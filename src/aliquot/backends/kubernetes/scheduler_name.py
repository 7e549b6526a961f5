"""Namespaces whose pods are all to be placed by us, whatever they say: annotation `runai/enforce-scheduler-name`."""

from __future__ import annotations

from aliquot import labels
from aliquot.api.base import Json

_MIRROR = "kubernetes.io/config.mirror"  # of pods that a kubelet runs from a file: nobody places them


def enforces(namespace: Json) -> bool:
    marks = (namespace.get("metadata") or {}).get("annotations") or {}
    return str(marks.get(labels.ENFORCE_SCHEDULER, "")).lower() == "true"


def forced_scheduler(pod: Json, namespace: Json) -> list[Json]:
    """The JSON patch (RFC 6902) that makes a new pod ours; empty when nothing is to be changed."""
    spec, marks = pod.get("spec") or {}, (pod.get("metadata") or {}).get("annotations") or {}
    if not enforces(namespace) or spec.get("nodeName") or _MIRROR in marks:
        return []
    if spec.get("schedulerName") in labels.SCHEDULER_NAMES:
        return []
    return [{"op": "add", "path": "/spec/schedulerName", "value": labels.SCHEDULER_NAMES[0]}]
