"""How the scheduler's decisions reach a cluster.

    whole GPUs, none    one binding; which GPU it is, is the kubelet's choice
    a part of a GPU     1. the GPU is claimed and held by its reservation pod, whose GPU becomes known
                        2. the pod's ConfigMap says which GPU it has and how much of it
                        3. the binding, tied to the version of the pod that the claim names
    a stop              an eviction, so that disruption budgets have their say

Each step finds what the one before it left, whoever carried that out. Where a step fails the claims are given up; what
was claimed and never bound, because somebody was killed, is let go by reservations.py; a ConfigMap goes with its pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from aliquot import labels
from aliquot.api import Device, DeviceShare, Node, Pod, devices_of, shares_text
from aliquot.backends.kubernetes.disruption_budgets import DisruptionBudgets, reason_of
from aliquot.backends.kubernetes.fraction_request import FractionRequest, asks_for_fraction, parse_fraction_request
from aliquot.backends.kubernetes.gpu_injection import config_map_data
from aliquot.backends.kubernetes.reservations.acquire import GpuReservations
from aliquot.backends.kubernetes.reservations.pod import ReservedGpu, is_simulated, read_claims
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.unstructured_kinds import CONFIG_MAP, MUTATING_WEBHOOK
from aliquot.backends.kubernetes.webhook import CONFIGURATION_NAME as WEBHOOK
from aliquot.errors import Conflict, Exists, Invalid, NotFound, PlatformError, Unavailable
from aliquot.gpu.fractions import GpuAllocation, SharingOptions, gpu_allocation
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from aliquot.units import timestamp_text

_TRIES, _TRY_SECONDS = 10, 0.2  # to end a claim; one that stays ends by its age
_MANAGED_BY = "app.kubernetes.io/managed-by"


class KubernetesBinder:
    """Binds and stops pods of a cluster. A bind may take seconds where a GPU must be held first: let others go on."""

    def __init__(self, driver: KubernetesDriver, informers: Informers, settings: GpuSharingSettings) -> None:
        self._driver = driver
        self._store = Store(driver)
        self._settings = settings
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._budgets = DisruptionBudgets(driver)
        self.reserver = GpuReservations(driver, informers, settings)

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """What must run beside it."""
        return [self._budgets.run()]

    async def abandon_unfinished(self) -> None:
        """Ends the claims of pods that still wait: who made them for a binding is gone."""
        claims = [
            (uid, claim)
            for (namespace, _), pod in self._pods.items()
            if namespace == labels.RESERVATION_NAMESPACE
            for uid, claim in read_claims(pod).items()
        ]
        heard = {uid: self._pods.get(claim.name, claim.namespace) for uid, claim in claims}
        waiting = [pod for uid, pod in heard.items() if pod and pod.metadata.uid == uid and not pod.spec.node_name]
        await asyncio.gather(*map(self._give_up, waiting))

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        if not asks_for_fraction(pod.metadata.annotations):
            await self._bind(pod, node, shares)
            return
        try:
            await self._bind(pod, node, await self._share(pod, node, shares))
        except PlatformError:
            await self._give_up(pod)
            raise

    async def _bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        place, marks = pod.metadata, {labels.DEVICES: shares_text(shares)}
        await self._driver.bind(place.name, place.namespace, node, marks, uid=place.uid, version=place.version)

    async def eviction_blocker(self, pod: Pod) -> str:
        return await self._budgets.eviction_blocker(pod)

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        place = pod.metadata
        try:
            await self._driver.evict(place.name, place.namespace, uid=place.uid, grace_seconds=grace_seconds)
        except NotFound:
            # Of the pod, or of the eviction itself where the cluster does not offer it.
            await self._store.delete(pod, grace_seconds=grace_seconds)
        except Unavailable as exc:
            raise Unavailable(f"pod {place.namespace}/{place.name} must not be stopped now: {reason_of(exc)}") from exc

    # ---------------------------------------------------------------- a part of a GPU

    async def _share(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> list[DeviceShare]:
        """Everything that comes before the binding; the shares with the names of their GPUs."""
        part = parse_fraction_request({"metadata": {"annotations": dict(pod.metadata.annotations)}})
        known = self._nodes.get(node)
        if known is None:
            raise Unavailable(f"node {node} is gone")
        config = pod.metadata.annotations.get(labels.GPU_CONFIG, "")
        if not config and not is_simulated(known):
            await self._make_anew(pod)
        found = await asyncio.gather(*(self.reserver.hold(pod, node, share.index) for share in shares))
        if config:
            slices = share_limits(pod, part, known, shares, found)
            await self._write_config(pod, config, config_map_data(slices, self._settings))
        return [replace(share, uuid=one.uuid) for share, one in zip(shares, found, strict=True)]

    async def _make_anew(self, pod: Pod) -> NoReturn:
        """A pod from a moment in which the API server did not know of the webhook. Whoever made it makes the next, and
        that one is fenced; nobody would replace a pod that nobody made."""
        shown = f"pod {pod.metadata.namespace}/{pod.metadata.name} has no fence around its part of a GPU"
        try:
            await self._driver.get(MUTATING_WEBHOOK, WEBHOOK)
        except NotFound:
            raise Invalid(shown, hint="the webhook is not installed: see --webhook-url") from None
        if not any(owner.controller for owner in pod.metadata.owners):
            raise Invalid(shown, hint="it is older than the webhook: make it anew")
        await self._store.delete(pod)
        raise Unavailable(f"{shown}; it is made anew")

    async def _give_up(self, pod: Pod) -> None:
        """Ends the claims of a pod that was not bound: else each GPU that was tried would be kept for it, and so be
        nobody's. A binding that is still on its way fails by this too; one that was done makes it a conflict."""
        for _ in range(_TRIES):
            try:
                await self.reserver.mark(pod, labels.GPU_CLAIM_BROKEN, timestamp_text(time.time()))
            except (Conflict, NotFound):
                return
            except Unavailable:
                await asyncio.sleep(_TRY_SECONDS)
                continue
            return

    async def _write_config(self, pod: Pod, name: str, data: dict[str, str]) -> None:
        place = pod.metadata
        owner = {"apiVersion": "v1", "kind": "Pod", "name": place.name, "uid": place.uid}
        wanted = {
            "metadata": {
                "name": name,
                "namespace": place.namespace,
                "labels": {_MANAGED_BY: "aliquot"},
                "ownerReferences": [owner],
            },
            "immutable": True,  # nobody raises a limit by editing it
            "data": data,
        }
        try:
            await self._driver.create(CONFIG_MAP, Document(wanted))
        except Exists:
            there = await self._driver.get(CONFIG_MAP, name, place.namespace)
            if there.data.get("data") == data and _owners(there) == [place.uid]:
                return
            if (there.metadata.get("labels") or {}).get(_MANAGED_BY) != "aliquot":
                raise Invalid(f"ConfigMap {place.namespace}/{name} is not ours", hint="remove it") from None
            # From an earlier try, or of a pod of the same name that is gone.
            await self._driver.delete(CONFIG_MAP, name, place.namespace, uid=there.uid)
            try:
                await self._driver.create(CONFIG_MAP, Document(wanted))
            except Exists:
                raise Conflict(f"ConfigMap {place.namespace}/{name} was written by somebody else meanwhile") from None


def share_limits(
    pod: Pod, part: FractionRequest, node: Node, shares: Sequence[DeviceShare], found: Sequence[ReservedGpu]
) -> tuple[GpuAllocation, ...]:
    """What a pod holds of each GPU, by the memory that was measured on it, or else that its node says it has."""
    said = {device.index: device for device in devices_of(node)}
    return tuple(
        _slice(pod, part, node, said.get(share.index, Device(index=share.index)), share, one)
        for share, one in zip(shares, found, strict=True)
    )


def _slice(
    pod: Pod, part: FractionRequest, node: Node, said: Device, share: DeviceShare, found: ReservedGpu
) -> GpuAllocation:
    memory = found.memory_mib or said.memory_mib
    if not memory:
        raise Unavailable(
            f"nobody says how much memory GPU {share.index} of node {node.metadata.name} has",
            hint=f"label the node {labels.GPU_MEMORY}=MIB, as NVIDIA's GPU feature discovery does",
        )
    # Of a fraction only the fraction counts: the scheduler knew the node's figure, and this one may be better.
    wanted = replace(share, memory_mib=part.memory_mib)
    device = Device(index=share.index, uuid=found.uuid, model=said.model, memory_mib=memory)
    return gpu_allocation(device, wanted, SharingOptions(mode=part.mode), pod_uid=pod.metadata.uid)


def _owners(document: Document) -> list[str]:
    return [str(owner.get("uid")) for owner in document.metadata.get("ownerReferences") or ()]
