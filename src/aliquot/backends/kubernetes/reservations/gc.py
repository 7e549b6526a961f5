"""Lets go of GPUs that nobody shares any more.

A reservation pod is removed when no claim on it is live, and has not been for a moment. Safe against who wants the GPU
again in that moment, because both write to the same pod with the version they saw: a claim that was written first makes
the removal a conflict, and after a removal there is nothing left to claim.

A claim whose pod still waits, unchanged, may be acted upon at any time, so it is live however old. When it is very old
its binder is gone: then the *pod* is changed, so that a binding by this claim cannot succeed, and the claim with it.

    lost        the node refused it: removed at once
    node gone   removed without waiting for a kubelet that will not answer
    taken away  somebody removed it under pods that have parts: made anew. Where the node then gives it another GPU, the
                pods' own may be anybody's by now, and they are stopped
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from aliquot import labels
from aliquot.api import KINDS, Namespace, Node, Pod
from aliquot.backends.kubernetes.fraction_request import asks_for_fraction
from aliquot.backends.kubernetes.reservations import pod as pods
from aliquot.backends.kubernetes.reservations.acquire import GpuReservations
from aliquot.backends.kubernetes.reservations.pod import GpuClaim
from aliquot.backends.kubernetes.reservations.state import Reservation, ReservationState, reservation_of
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.unstructured_kinds import PRIORITY_CLASS
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import NotFound
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store
from aliquot.units import timestamp_text

_SPACE = labels.RESERVATION_NAMESPACE
log = structlog.get_logger()


async def prepare(driver: KubernetesDriver) -> None:
    """What must be there before the first GPU is shared."""
    await driver.apply(KINDS.of(Namespace), {"metadata": {"name": _SPACE}})
    await driver.apply(PRIORITY_CLASS, pods.priority_class())


class ReservationCollector:
    def __init__(
        self,
        driver: KubernetesDriver,
        informers: Informers,
        reserver: GpuReservations,
        settings: GpuSharingSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = Store(driver)
        self._reserver = reserver
        self._settings = settings
        self._clock = clock
        self._pods = informers.of(Pod)
        self._nodes = informers.of(Node)
        self._idle: dict[str, float] = {}  # uid of a reservation pod: since when nobody has a part
        self._waits: dict[tuple[str, str], float] = {}  # uid and version of a pod that claims and waits: since when
        self._claimed: dict[str, set[str]] = {}  # uid of a pod: the reservation pods it has claims on
        self._parts: dict[str, set[Key]] = {}  # reservation pods by name: bound pods that rely on it
        self.controller = Controller("reservations", self.reconcile)
        self._pods.listen(self._pod_changed)
        self._nodes.listen(self._node_changed)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if key[0] == _SPACE:
            self._note(key[1], old, new)
            self.controller.enqueue(key)
            return
        for name in _reservations(old):
            self._parts.get(name, set()).discard(key)
        for name in _reservations(new):
            self._parts.setdefault(name, set()).add(key)
            if self._pods.get(name, _SPACE) is None:
                self.controller.enqueue((_SPACE, name))
        if new is None or not new.spec.node_name or _has_ended(new):
            changed = old if new is None else new
            for name in self._claimed.get(changed.metadata.uid, ()) if changed is not None else ():
                self.controller.enqueue((_SPACE, name))

    def _note(self, name: str, old: Pod | None, new: Pod | None) -> None:
        """Which reservations a pod has claims on: they are looked at when it ends, or changes while it waits."""
        for uid in pods.read_claims(old) if old is not None else ():
            self._claimed.get(uid, set()).discard(name)
            if not self._claimed.get(uid):
                self._claimed.pop(uid, None)
        for uid in pods.read_claims(new) if new is not None else ():
            self._claimed.setdefault(uid, set()).add(name)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._idle.pop(old.metadata.uid, None)

    def _node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        if old is not None and new is None:
            for place, pod in list(self._pods.items()):
                if place[0] == _SPACE and pod.spec.node_name == key[1]:
                    self.controller.enqueue(place)

    async def reconcile(self, key: Key) -> None:
        await self._nodes.synced.wait()  # before that none seems to be there
        await self._pods.synced.wait()
        seen = self._pods.get(key[1], key[0])
        if seen is None:
            await self._repair(key[1])
            return
        held = reservation_of(seen)
        if held is None:
            return
        if await self._is_gone(held.node):
            await self._remove(seen, "its node is gone", grace_seconds=0)
        elif held.state is ReservationState.LEAVING:
            return
        elif held.state is ReservationState.LOST:
            await self._remove(seen, pods.failure_reason(seen))
        else:
            await self._sort(key, seen, held)

    async def _is_gone(self, node: str) -> bool:
        """Asked of the cluster as well: we may not have heard of a new node yet."""
        if self._nodes.get(node) is not None:
            return False
        try:
            await self._store.get(Node, node)
        except NotFound:
            return True
        return False

    async def _sort(self, key: Key, seen: Pod, held: Reservation) -> None:
        """Claims that are over are dropped, and with the last of them the reservation."""
        claims = pods.read_claims(seen)
        looked = {uid: await self._look(uid, claim, held) for uid, claim in claims.items()}
        live = {uid: claims[uid] for uid, pod in looked.items() if pod is not None}
        if any(pod is not None and not pod.spec.node_name for pod in looked.values()):
            # A claim may expire without any other change.
            self.controller.enqueue_after(key, self._settings.claim_seconds / 2)
        if live:
            self._idle.pop(seen.metadata.uid, None)
            if len(live) < len(claims):
                await self._reserver.mark(seen, labels.GPU_CLAIMS, pods.claims_annotation(live))
            return
        since = self._idle.setdefault(seen.metadata.uid, self._clock())
        # One that runs makes nobody wait for its image any more, whether or not somebody asked which GPU it has.
        runs = seen.status.phase == "Running"
        patience = self._settings.idle_seconds if runs else self._settings.preparing_seconds
        left = since + patience - self._clock()
        if left > 0:
            self.controller.enqueue_after(key, left)
            return
        await self._remove(seen, "nobody has a part of its GPU")

    async def _repair(self, name: str) -> None:
        """Hold the GPU again for those who have parts of it and whose reservation is gone."""
        heard = [self._pods.get(key[1], key[0]) for key in self._parts.get(name, ())]
        if not any(heard):
            self._parts.pop(name, None)
            return
        for pod in filter(None, heard):
            if await self._is_gone(pod.spec.node_name):
                continue
            for share in pods.shares_held(pod):
                if pods.reservation_name(pod.spec.node_name, share.index) == name:
                    found = await self._reserver.hold(pod, pod.spec.node_name, share.index)
                    if share.uuid and found.uuid != share.uuid:
                        log.warning("a pod has lost its GPU and is stopped", pod=_shown(pod), gpu=share.uuid)
                        await self._store.delete(pod)

    async def _look(self, uid: str, claim: GpuClaim, held: Reservation) -> Pod | None:
        """The pod whose claim is live; None when it is over.

        What we heard of a pod may be old, so only a part that it surely has counts without asking the cluster.
        """
        heard = self._pods.get(claim.name, claim.namespace)
        if heard is not None and heard.spec.node_name and pods.is_claim_live(claim, uid, heard, held.node, held.index):
            self._waits.pop((uid, claim.version), None)
            return heard
        try:
            now = await self._store.get(Pod, claim.name, claim.namespace)
        except NotFound:
            now = None
        if now is None or not pods.is_claim_live(claim, uid, now, held.node, held.index):
            self._waits.pop((uid, claim.version), None)
            return None
        if not now.spec.node_name:
            await self._break_if_old(now, claim)
        return now

    async def _break_if_old(self, pod: Pod, claim: GpuClaim) -> None:
        mark = (pod.metadata.uid, claim.version)
        if self._clock() - self._waits.setdefault(mark, self._clock()) < self._settings.claim_seconds:
            return
        await self._reserver.mark(pod, labels.GPU_CLAIM_BROKEN, timestamp_text(self._clock()))
        self._waits.pop(mark, None)
        log.info("a claim on a GPU was never used and is over", pod=f"{claim.namespace}/{claim.name}")

    async def _remove(self, seen: Pod, why: str, *, grace_seconds: int | None = None) -> None:
        await self._reserver.remove(seen, grace_seconds=grace_seconds)
        log.info("a GPU is given back", reservation=seen.metadata.name, why=why)


def _has_ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def _reservations(pod: Pod | None) -> list[str]:
    """Names of those that a pod relies on: bound, with parts of GPUs, and not ended."""
    if pod is None or not pod.spec.node_name or _has_ended(pod) or not asks_for_fraction(pod.metadata.annotations):
        return []
    return [pods.reservation_name(pod.spec.node_name, share.index) for share in pods.shares_held(pod)]


def _shown(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
