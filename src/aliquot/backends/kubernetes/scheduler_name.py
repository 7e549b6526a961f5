"""Namespaces in which every pod is placed by this scheduler: annotation `runai/enforce-scheduler-name`.

    scheduler_name_patch       what the webhook changes about a new pod of such a namespace
    SchedulerNameController    copies the annotation to a label

Administrators set the annotation on a namespace. The API server selects pods for a webhook by labels of their namespace
only, so a label has to follow the annotation.
"""

from __future__ import annotations

from aliquot import labels
from aliquot.api import KINDS, Json, Namespace, encode
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store

# Set on static pods, which a kubelet runs from a file: no scheduler places them.
_MIRROR_POD = "kubernetes.io/config.mirror"


def is_enforced(namespace: Json) -> bool:
    annotations = (namespace.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(labels.ENFORCE_SCHEDULER, "")).lower() == "true"


def scheduler_name_patch(pod: Json, namespace: Json) -> list[Json]:
    """The JSON patch (RFC 6902) that sets this scheduler's name on a new pod; empty if nothing changes."""
    spec, annotations = pod.get("spec") or {}, (pod.get("metadata") or {}).get("annotations") or {}
    if not is_enforced(namespace) or spec.get("nodeName") or _MIRROR_POD in annotations:
        return []
    if spec.get("schedulerName") in labels.SCHEDULER_NAMES:
        return []
    return [{"op": "add", "path": "/spec/schedulerName", "value": labels.SCHEDULER_NAMES[0]}]


class SchedulerNameController:
    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._namespaces = informers.of(Namespace)
        self.controller = Controller("scheduler name", self.reconcile)
        self.controller.watch(self._namespaces)

    async def reconcile(self, key: Key) -> None:
        namespace = self._namespaces.get(key[1])
        if namespace is None or namespace.metadata.deleted is not None:
            return
        labelled = namespace.metadata.labels.get(labels.SCHEDULER_ENFORCED) == "true"
        if is_enforced(encode(namespace)) == labelled:
            return
        patch = {"metadata": {"labels": {labels.SCHEDULER_ENFORCED: None if labelled else "true"}}}
        meta = namespace.metadata
        await self._store.driver.patch(KINDS.of(Namespace), meta.name, "", patch, version=meta.version)
