"""Namespaces whose pods are all ours to place: their annotation `runai/enforce-scheduler-name` as a label.

Administrators write the annotation, and the API server picks pods for a webhook by labels of their namespace only.
"""

from __future__ import annotations

from aliquot import labels
from aliquot.api import KINDS, Namespace, encode
from aliquot.backends.kubernetes.scheduler_name import enforces
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store


class Enforcing:
    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._namespaces = informers.of(Namespace)
        self.loop = Controller("enforcing", self.reconcile)
        self.loop.follow(self._namespaces)

    async def reconcile(self, key: Key) -> None:
        seen = self._namespaces.get(key[1])
        if seen is None or seen.metadata.deleted is not None or enforces(encode(seen)) == is_marked(seen):
            return
        change = {"metadata": {"labels": {labels.SCHEDULER_ENFORCED: None if is_marked(seen) else "true"}}}
        place = seen.metadata
        await self._store.driver.patch(KINDS.of(Namespace), place.name, "", change, version=place.version)


def is_marked(namespace: Namespace) -> bool:
    return namespace.metadata.labels.get(labels.SCHEDULER_ENFORCED) == "true"
