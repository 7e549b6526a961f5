"""Releases GPUs that no pod shares any more.

A reservation pod is deleted once it has had no live claim for a moment. This is safe against a binder that wants the
GPU again at the same time, because both write to the same pod with the version that they read: a claim that was written
first makes the deletion a conflict, and after the deletion there is nothing left to claim.

The claim of a pending, unchanged pod may be used at any time, so it is live however old it is. When it is very old its
binder is gone. Then the *pending pod* is changed, so that no binding by this claim can succeed, and the claim ends.

    lost            the node refused the reservation pod: deleted at once
    node gone       deleted without waiting for a kubelet that will not respond
    deleted early   a user deleted it while pods have fractions of its GPU: created again. If the node then assigns a
                    different GPU, the pods' own GPU may have been given away, and the pods are stopped
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from aliquot import labels
from aliquot.api import KINDS, Namespace, Node, Pod
from aliquot.backends.kubernetes.fraction_request import asks_for_fraction
from aliquot.backends.kubernetes.reservations import pod as reservation_pod
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

_NAMESPACE = labels.RESERVATION_NAMESPACE
log = structlog.get_logger()


async def prepare(driver: KubernetesDriver) -> None:
    """Creates what the first reservation pod needs."""
    await driver.apply(KINDS.of(Namespace), {"metadata": {"name": _NAMESPACE}})
    await driver.apply(PRIORITY_CLASS, reservation_pod.priority_class())


class ReservationCollector:
    def __init__(
        self,
        driver: KubernetesDriver,
        informers: Informers,
        reservations: GpuReservations,
        settings: GpuSharingSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = Store(driver)
        self._reservations = reservations
        self._settings = settings
        self._clock = clock
        self._pods = informers.of(Pod)
        self._nodes = informers.of(Node)
        self._unused_since: dict[str, float] = {}  # by uid of the reservation pod
        self._pending_since: dict[tuple[str, str], float] = {}  # by uid and version of a pending pod with a claim
        self._reservations_by_claimant: dict[str, set[str]] = {}  # uid of a pod: names of reservation pods it claims
        self._users: dict[str, set[Key]] = {}  # name of a reservation pod: bound pods with fractions of its GPU
        self.controller = Controller("reservations", self.reconcile)
        self._pods.listen(self._pod_changed)
        self._nodes.listen(self._node_changed)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if key[0] == _NAMESPACE:
            self._index_claims(key[1], old, new)
            self.controller.enqueue(key)
            return
        for name in _reservations_used(old):
            self._users.get(name, set()).discard(key)
        for name in _reservations_used(new):
            self._users.setdefault(name, set()).add(key)
            if self._pods.get(name, _NAMESPACE) is None:
                self.controller.enqueue((_NAMESPACE, name))
        if new is None or not new.spec.node_name or _has_ended(new):
            changed = old if new is None else new
            for name in self._reservations_by_claimant.get(changed.metadata.uid, ()) if changed is not None else ():
                self.controller.enqueue((_NAMESPACE, name))

    def _index_claims(self, name: str, old: Pod | None, new: Pod | None) -> None:
        """Indexes a reservation pod's claims: it is reconciled when a claimant ends, or changes while pending."""
        for uid in reservation_pod.read_claims(old) if old is not None else ():
            self._reservations_by_claimant.get(uid, set()).discard(name)
            if not self._reservations_by_claimant.get(uid):
                self._reservations_by_claimant.pop(uid, None)
        for uid in reservation_pod.read_claims(new) if new is not None else ():
            self._reservations_by_claimant.setdefault(uid, set()).add(name)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._unused_since.pop(old.metadata.uid, None)

    def _node_changed(self, key: Key, old: Node | None, new: Node | None) -> None:
        if old is not None and new is None:
            for pod_key, pod in list(self._pods.items()):
                if pod_key[0] == _NAMESPACE and pod.spec.node_name == key[1]:
                    self.controller.enqueue(pod_key)

    async def reconcile(self, key: Key) -> None:
        await self._nodes.synced.wait()  # before that every node seems to be gone
        await self._pods.synced.wait()
        pod = self._pods.get(key[1], key[0])
        if pod is None:
            await self._restore(key[1])
            return
        reservation = reservation_of(pod)
        if reservation is None:
            return
        if await self._is_node_gone(reservation.node):
            await self._delete(pod, "its node is gone", grace_seconds=0)
        elif reservation.state is ReservationState.LEAVING:
            return
        elif reservation.state is ReservationState.LOST:
            await self._delete(pod, reservation_pod.failure_reason(pod))
        else:
            await self._collect_claims(key, pod, reservation)

    async def _is_node_gone(self, node: str) -> bool:
        """Asks the API server as well: the informer may not have seen a new node yet."""
        if self._nodes.get(node) is not None:
            return False
        try:
            await self._store.get(Node, node)
        except NotFound:
            return True
        return False

    async def _collect_claims(self, key: Key, pod: Pod, reservation: Reservation) -> None:
        """Drops claims that are over, and deletes the reservation pod some time after the last one."""
        claims = reservation_pod.read_claims(pod)
        claimants = {uid: await self._live_claimant(uid, claim, reservation) for uid, claim in claims.items()}
        live = {uid: claims[uid] for uid, claimant in claimants.items() if claimant is not None}
        if any(claimant is not None and not claimant.spec.node_name for claimant in claimants.values()):
            self.controller.enqueue_after(key, self._settings.claim_seconds / 2)  # claims of pending pods expire
        if live:
            self._unused_since.pop(pod.metadata.uid, None)
            if len(live) < len(claims):
                await self._reservations.annotate(pod, labels.GPU_CLAIMS, reservation_pod.claims_annotation(live))
            return
        since = self._unused_since.setdefault(pod.metadata.uid, self._clock())
        # A pod that does not run yet may be pulling its image; the next bind would have to wait for that again.
        running = pod.status.phase == "Running"
        keep_seconds = self._settings.idle_seconds if running else self._settings.preparing_seconds
        left = since + keep_seconds - self._clock()
        if left > 0:
            self.controller.enqueue_after(key, left)
            return
        await self._delete(pod, "no pod uses its GPU")

    async def _restore(self, name: str) -> None:
        """Reserves the GPU again for bound pods whose reservation pod was deleted."""
        users = [self._pods.get(key[1], key[0]) for key in self._users.get(name, ())]
        if not any(users):
            self._users.pop(name, None)
            return
        for pod in filter(None, users):
            if await self._is_node_gone(pod.spec.node_name):
                continue
            for share in reservation_pod.shares_held(pod):
                if reservation_pod.reservation_name(pod.spec.node_name, share.index) == name:
                    gpu = await self._reservations.acquire(pod, pod.spec.node_name, share.index)
                    if share.uuid and gpu.uuid != share.uuid:
                        log.warning("stopping a pod that lost its GPU", pod=_full_name(pod), gpu=share.uuid)
                        await self._store.delete(pod)

    async def _live_claimant(self, uid: str, claim: GpuClaim, reservation: Reservation) -> Pod | None:
        """The pod whose claim is live; None if the claim is over.

        The informer may be behind, so only a share that the pod certainly has counts without asking the API server.
        """
        cached = self._pods.get(claim.name, claim.namespace)
        if (
            cached is not None
            and cached.spec.node_name
            and reservation_pod.is_claim_live(claim, uid, cached, reservation.node, reservation.index)
        ):
            self._pending_since.pop((uid, claim.version), None)
            return cached
        try:
            current = await self._store.get(Pod, claim.name, claim.namespace)
        except NotFound:
            current = None
        if current is None or not reservation_pod.is_claim_live(
            claim, uid, current, reservation.node, reservation.index
        ):
            self._pending_since.pop((uid, claim.version), None)
            return None
        if not current.spec.node_name:
            await self._break_if_expired(current, claim)
        return current

    async def _break_if_expired(self, pod: Pod, claim: GpuClaim) -> None:
        key = (pod.metadata.uid, claim.version)
        if self._clock() - self._pending_since.setdefault(key, self._clock()) < self._settings.claim_seconds:
            return
        await self._reservations.annotate(pod, labels.GPU_CLAIM_BROKEN, timestamp_text(self._clock()))
        self._pending_since.pop(key, None)
        log.info("broke a claim on a GPU that was never used", pod=f"{claim.namespace}/{claim.name}")

    async def _delete(self, pod: Pod, reason: str, *, grace_seconds: int | None = None) -> None:
        await self._reservations.delete(pod, grace_seconds=grace_seconds)
        log.info("released a GPU", reservation=pod.metadata.name, reason=reason)


def _has_ended(pod: Pod) -> bool:
    return pod.status.phase in ("Succeeded", "Failed")


def _reservations_used(pod: Pod | None) -> list[str]:
    """The names of the reservation pods that a pod depends on: none unless it is bound, has fractions and has not
    ended."""
    if pod is None or not pod.spec.node_name or _has_ended(pod) or not asks_for_fraction(pod.metadata.annotations):
        return []
    return [
        reservation_pod.reservation_name(pod.spec.node_name, share.index) for share in reservation_pod.shares_held(pod)
    ]


def _full_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
