"""Holds a GPU for those who share it, before one of them is bound to it.

    hold    claims the GPU for a pod, makes the reservation pod where there is none, and waits until it is known which
            GPU the node gave it; `Unavailable` when the GPU cannot be had, or not yet

Whatever is cut off in between is found and used by the next try. Nothing here waits for anything but its own GPU.
"""

from __future__ import annotations

import asyncio

import structlog

from aliquot import labels
from aliquot.api import KINDS, Node, Pod, decode
from aliquot.backends.kubernetes.reservations import pod as pods
from aliquot.backends.kubernetes.reservations.pod import ReservedGpu
from aliquot.backends.kubernetes.reservations.state import Reservation, ReservationState, reservation_of
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import Conflict, Exists, NotFound, PlatformError, Unavailable
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store

_SPACE = labels.RESERVATION_NAMESPACE
_LOG_SECONDS = 0.2  # between two looks into a log that says nothing yet
log = structlog.get_logger()


class GpuReservations:
    def __init__(self, driver: KubernetesDriver, informers: Informers, settings: GpuSharingSettings) -> None:
        self._driver = driver
        self._store = Store(driver)
        self._settings = settings
        self._pods = informers.of(Pod)
        self._nodes = informers.of(Node)
        self._locks: dict[str, asyncio.Lock] = {}  # one a GPU: claims on it are written one after the other
        self._waiting: dict[str, set[asyncio.Event]] = {}  # who wants to hear of a reservation pod
        self._pods.listen(self._heard)

    async def hold(self, pod: Pod, node: str, index: int) -> ReservedGpu:
        name = pods.reservation_name(node, index)
        seen, bell = None, asyncio.Event()
        self._waiting.setdefault(name, set()).add(bell)
        try:
            async with asyncio.timeout(self._settings.hold_seconds):
                seen = await self._claim(name, pod, node, index)
                while True:
                    bell.clear()
                    seen = self._latest(seen, name)
                    found = await self._found(seen, node, index)
                    if found is not None:
                        return found
                    await bell.wait()
        except TimeoutError:
            why = "its pod could not be made in time" if seen is None else pods.failure_reason(seen)
            raise Unavailable(f"GPU {index} of node {node} is not held yet: {why}") from None
        finally:
            self._waiting[name].discard(bell)

    def _heard(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if key[0] == _SPACE:
            for bell in self._waiting.get(key[1], ()):
                bell.set()

    def _latest(self, seen: Pod, name: str) -> Pod:
        """As far as we have heard; what we wrote a moment ago may not have come back to us yet."""
        heard = self._pods.get(name, _SPACE)
        return heard if heard is not None and heard.metadata.uid == seen.metadata.uid else seen

    async def _found(self, seen: Pod, node: str, index: int) -> ReservedGpu | None:
        """The GPU that is held; None as long as there is something to wait for."""
        reserved = await self._checked(seen, node, index)
        if reserved.state is ReservationState.HELD:
            return ReservedGpu(reserved.uuid, reserved.memory_mib)
        if seen.status.phase != "Running":
            return None
        async with self._lock(seen.metadata.name):
            return await self._learn(seen, node, index)

    async def _checked(self, seen: Pod, node: str, index: int) -> Reservation:
        """What a reservation pod holds, if it can be relied on."""
        reserved = reservation_of(seen)
        if reserved is None or reserved.state is ReservationState.LEAVING:
            raise Unavailable(f"GPU {index} of node {node} is being given back")
        if reserved.state is ReservationState.LOST:
            await self.remove(seen)
            raise Unavailable(f"GPU {index} of node {node} is not free: {pods.failure_reason(seen)}")
        return reserved

    async def remove(self, seen: Pod, *, grace_seconds: int | None = None) -> None:
        """This very pod, as it was seen: a claim that came meanwhile is a `Conflict`."""
        place = seen.metadata
        try:
            await self._driver.delete(
                KINDS.of(Pod),
                place.name,
                place.namespace,
                uid=place.uid,
                version=place.version,
                grace_seconds=grace_seconds,
            )
        except NotFound:
            return

    # ---------------------------------------------------------------- claims

    async def _claim(self, name: str, pod: Pod, node: str, index: int) -> Pod:
        """The reservation pod, with a claim of this pod on it."""
        uid, claim = pods.claim_for(pod)
        async with self._lock(name):
            seen = self._pods.get(name, _SPACE)
            while True:
                if seen is None:
                    try:
                        return await self._create(node, index, {uid: claim})
                    except Exists:
                        seen = await self._read(name)
                        continue
                await self._checked(seen, node, index)
                claims = pods.read_claims(seen)
                if claims.get(uid) == claim:
                    return seen
                text = pods.claims_annotation({**claims, uid: claim})
                try:
                    return await self.mark(seen, labels.GPU_CLAIMS, text)
                except (Conflict, NotFound):
                    seen = await self._read(name)

    async def _create(self, node: str, index: int, claims: dict[str, pods.GpuClaim]) -> Pod:
        known = self._nodes.get(node)
        if known is None:
            raise Unavailable(f"node {node} is gone")
        made = pods.manifest(known, index, claims, self._settings)
        return decode(Pod, (await self._driver.create(KINDS.of(Pod), Document(made))).data)

    async def _read(self, name: str) -> Pod | None:
        try:
            return await self._store.get(Pod, name, _SPACE)
        except NotFound:
            return None

    async def mark(self, seen: Pod, key: str, text: str) -> Pod:
        """Write an annotation of a pod, if it is still as it was seen."""
        place, change = seen.metadata, {"metadata": {"annotations": {key: text}}}
        written = await self._driver.patch(KINDS.of(Pod), place.name, place.namespace, change, version=place.version)
        return decode(Pod, written.data)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    # ---------------------------------------------------------------- which GPU it is

    async def _learn(self, seen: Pod, node: str, index: int) -> ReservedGpu | None:
        """Asks the pod, and writes on it what it says. None: somebody else wrote meanwhile, look again."""
        seen = self._latest(seen, seen.metadata.name)
        reserved = reservation_of(seen)
        if reserved is not None and reserved.uuid:
            return ReservedGpu(reserved.uuid, reserved.memory_mib)  # by one who waited before us
        known = self._nodes.get(node)
        simulated = known is not None and pods.is_simulated(known)
        found = pods.simulated_gpu(node, index) if simulated else await self._ask(seen)
        try:
            await self.mark(seen, labels.DEVICES, pods.devices_annotation(index, found))
        except Conflict:
            return None
        except NotFound:
            raise Unavailable(f"GPU {index} of node {node} was given back meanwhile") from None
        return found

    async def _ask(self, seen: Pod) -> ReservedGpu:
        """From its log: it is there a moment after the pod runs."""
        while True:
            try:
                found = pods.gpu_from_log(await self._driver.log(seen.metadata.name, _SPACE))
                if found is not None:
                    return found
            except PlatformError as exc:
                log.debug("log of a reservation not readable", pod=seen.metadata.name, error=str(exc))
            await asyncio.sleep(_LOG_SECONDS)
