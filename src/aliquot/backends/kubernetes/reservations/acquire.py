"""Reserves GPUs for pods with fractions, before those pods are bound.

`acquire` adds the pod's claim to the GPU's reservation pod, creates that pod if there is none, and waits until it
reports which GPU the node assigned to it. It raises `Unavailable` if the GPU cannot be reserved, or not yet.

A step that was interrupted is continued by the next attempt. Each call waits for its own GPU only.
"""

from __future__ import annotations

import asyncio

import structlog

from aliquot import labels
from aliquot.api import KINDS, Node, Pod, decode
from aliquot.backends.kubernetes.reservations import pod as reservation_pod
from aliquot.backends.kubernetes.reservations.pod import ReservedGpu
from aliquot.backends.kubernetes.reservations.state import Reservation, ReservationState, reservation_of
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import Conflict, Exists, NotFound, PlatformError, Unavailable
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store

_NAMESPACE = labels.RESERVATION_NAMESPACE
_LOG_SECONDS = 0.2  # between two reads of a log that names no GPU yet
log = structlog.get_logger()


class GpuReservations:
    def __init__(self, driver: KubernetesDriver, informers: Informers, settings: GpuSharingSettings) -> None:
        self._driver = driver
        self._store = Store(driver)
        self._settings = settings
        self._pods = informers.of(Pod)
        self._nodes = informers.of(Node)
        self._locks: dict[str, asyncio.Lock] = {}  # one per GPU: claims on it are written one after the other
        self._waiters: dict[str, set[asyncio.Event]] = {}  # name of a reservation pod: set when it changes
        self._pods.listen(self._pod_changed)

    async def acquire(self, pod: Pod, node: str, index: int) -> ReservedGpu:
        name = reservation_pod.reservation_name(node, index)
        reservation, wake = None, asyncio.Event()
        self._waiters.setdefault(name, set()).add(wake)
        try:
            async with asyncio.timeout(self._settings.hold_seconds):
                reservation = await self._claim(name, pod, node, index)
                while True:
                    wake.clear()
                    reservation = self._latest(reservation)
                    gpu = await self._reserved_gpu(reservation, node, index)
                    if gpu is not None:
                        return gpu
                    await wake.wait()
        except TimeoutError:
            reason = (
                "its pod could not be created in time"
                if reservation is None
                else reservation_pod.failure_reason(reservation)
            )
            raise Unavailable(f"GPU {index} of node {node} is not reserved yet: {reason}") from None
        finally:
            self._waiters[name].discard(wake)

    def _pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if key[0] == _NAMESPACE:
            for wake in self._waiters.get(key[1], ()):
                wake.set()

    def _latest(self, pod: Pod) -> Pod:
        """The pod as the informer has it; `pod` itself if the informer has not seen it yet."""
        cached = self._pods.get(pod.metadata.name, _NAMESPACE)
        return cached if cached is not None and cached.metadata.uid == pod.metadata.uid else pod

    async def _reserved_gpu(self, pod: Pod, node: str, index: int) -> ReservedGpu | None:
        """The GPU that the reservation pod holds; None as long as it makes sense to wait."""
        reservation = await self._usable(pod, node, index)
        if reservation.state is ReservationState.HELD:
            return ReservedGpu(reservation.uuid, reservation.memory_mib)
        if pod.status.phase != "Running":
            return None
        async with self._lock(pod.metadata.name):
            return await self._identify(pod, node, index)

    async def _usable(self, pod: Pod, node: str, index: int) -> Reservation:
        """The pod's reservation; `Unavailable` if it is lost or being deleted."""
        reservation = reservation_of(pod)
        if reservation is None or reservation.state is ReservationState.LEAVING:
            raise Unavailable(f"GPU {index} of node {node} is being released")
        if reservation.state is ReservationState.LOST:
            await self.delete(pod)
            raise Unavailable(f"GPU {index} of node {node} is not free: {reservation_pod.failure_reason(pod)}")
        return reservation

    async def delete(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """Deletes this version of a reservation pod; `Conflict` if a claim was added since it was read."""
        meta = pod.metadata
        try:
            await self._driver.delete(
                KINDS.of(Pod),
                meta.name,
                meta.namespace,
                uid=meta.uid,
                version=meta.version,
                grace_seconds=grace_seconds,
            )
        except NotFound:
            return

    # ---------------------------------------------------------------- claims

    async def _claim(self, name: str, pod: Pod, node: str, index: int) -> Pod:
        """The reservation pod, with this pod's claim on it."""
        uid, claim = reservation_pod.claim_for(pod)
        async with self._lock(name):
            reservation = self._pods.get(name, _NAMESPACE)
            while True:
                if reservation is None:
                    try:
                        return await self._create(node, index, {uid: claim})
                    except Exists:
                        reservation = await self._read(name)
                        continue
                await self._usable(reservation, node, index)
                claims = reservation_pod.read_claims(reservation)
                if claims.get(uid) == claim:
                    return reservation
                text = reservation_pod.claims_annotation({**claims, uid: claim})
                try:
                    return await self.annotate(reservation, labels.GPU_CLAIMS, text)
                except (Conflict, NotFound):
                    reservation = await self._read(name)

    async def _create(self, node_name: str, index: int, claims: dict[str, reservation_pod.GpuClaim]) -> Pod:
        node = self._nodes.get(node_name)
        if node is None:
            raise Unavailable(f"node {node_name} is gone")
        manifest = reservation_pod.manifest(node, index, claims, self._settings)
        return decode(Pod, (await self._driver.create(KINDS.of(Pod), Document(manifest))).data)

    async def _read(self, name: str) -> Pod | None:
        try:
            return await self._store.get(Pod, name, _NAMESPACE)
        except NotFound:
            return None

    async def annotate(self, pod: Pod, key: str, text: str) -> Pod:
        """Sets an annotation on this version of a pod; `Conflict` if the pod has changed."""
        meta, patch = pod.metadata, {"metadata": {"annotations": {key: text}}}
        written = await self._driver.patch(KINDS.of(Pod), meta.name, meta.namespace, patch, version=meta.version)
        return decode(Pod, written.data)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    # ---------------------------------------------------------------- which GPU it is

    async def _identify(self, pod: Pod, node_name: str, index: int) -> ReservedGpu | None:
        """Reads the GPU from the pod's log and writes it on the pod. None if the pod was changed meanwhile: retry."""
        pod = self._latest(pod)
        reservation = reservation_of(pod)
        if reservation is not None and reservation.uuid:
            return ReservedGpu(reservation.uuid, reservation.memory_mib)  # a caller before this one has done it
        node = self._nodes.get(node_name)
        if node is not None and reservation_pod.is_simulated(node):
            gpu = reservation_pod.simulated_gpu(node_name, index)
        else:
            gpu = await self._gpu_from_log(pod)
        try:
            await self.annotate(pod, labels.DEVICES, reservation_pod.devices_annotation(index, gpu))
        except Conflict:
            return None
        except NotFound:
            raise Unavailable(f"GPU {index} of node {node_name} was released meanwhile") from None
        return gpu

    async def _gpu_from_log(self, pod: Pod) -> ReservedGpu:
        """Polls the log, because the pod writes it a moment after it starts."""
        while True:
            try:
                gpu = reservation_pod.gpu_from_log(await self._driver.log(pod.metadata.name, _NAMESPACE))
                if gpu is not None:
                    return gpu
            except PlatformError as exc:
                log.debug("cannot read the log of a reservation pod", pod=pod.metadata.name, error=str(exc))
            await asyncio.sleep(_LOG_SECONDS)
