"""Carries out the scheduler's decisions on a cluster.

    whole GPUs, no GPU   one binding; the kubelet chooses the GPUs
    a GPU fraction       1. claim the GPU: its reservation pod holds it and reports which GPU it is
                         2. write the pod's ConfigMap: which GPU it has, and how much of it
                         3. bind the pod, in the version that the claim names
    a stop               an eviction, so that disruption budgets apply

Each step starts from what the step before it left behind, whichever process did that. If a step fails the claims are
given up. A claim that was never followed by a binding, because the process was killed, expires (reservations/gc.py). A
ConfigMap is deleted with its pod.
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

_ATTEMPTS, _RETRY_SECONDS = 10, 0.2  # to break a claim; one that stays expires by its age
_MANAGED_BY = "app.kubernetes.io/managed-by"


class KubernetesBinder:
    """Binds and stops pods of a cluster.

    A bind may take seconds if a GPU has to be reserved first; callers should not wait for it one by one.
    """

    def __init__(self, driver: KubernetesDriver, informers: Informers, settings: GpuSharingSettings) -> None:
        self._driver = driver
        self._store = Store(driver)
        self._settings = settings
        self._nodes = informers.of(Node)
        self._pods = informers.of(Pod)
        self._budgets = DisruptionBudgets(driver)
        self.reservations = GpuReservations(driver, informers, settings)

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What must run as long as the binder is used."""
        return [self._budgets.run()]

    async def abandon_unfinished(self) -> None:
        """Breaks the claims of pending pods: the process that made them to bind those pods is gone."""
        claims = [
            (uid, claim)
            for (namespace, _), pod in self._pods.items()
            if namespace == labels.RESERVATION_NAMESPACE
            for uid, claim in read_claims(pod).items()
        ]
        claimants = {uid: self._pods.get(claim.name, claim.namespace) for uid, claim in claims}
        pending = [pod for uid, pod in claimants.items() if pod and pod.metadata.uid == uid and not pod.spec.node_name]
        await asyncio.gather(*map(self._break_claims, pending))

    async def bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        if not asks_for_fraction(pod.metadata.annotations):
            await self._bind(pod, node, shares)
            return
        try:
            await self._bind(pod, node, await self._prepare_fraction(pod, node, shares))
        except PlatformError:
            await self._break_claims(pod)
            raise

    async def _bind(self, pod: Pod, node: str, shares: Sequence[DeviceShare]) -> None:
        meta, annotations = pod.metadata, {labels.DEVICES: shares_text(shares)}
        await self._driver.bind(meta.name, meta.namespace, node, annotations, uid=meta.uid, version=meta.version)

    async def eviction_blocker(self, pod: Pod) -> str:
        return await self._budgets.eviction_blocker(pod)

    async def evict(self, pod: Pod, grace_seconds: int | None) -> None:
        meta = pod.metadata
        try:
            await self._driver.evict(meta.name, meta.namespace, uid=meta.uid, grace_seconds=grace_seconds)
        except NotFound:
            # The pod is gone, or the cluster does not serve the eviction API.
            await self._store.delete(pod, grace_seconds=grace_seconds)
        except Unavailable as exc:
            raise Unavailable(f"pod {meta.namespace}/{meta.name} must not be stopped now: {reason_of(exc)}") from exc

    # ---------------------------------------------------------------- GPU fractions

    async def _prepare_fraction(self, pod: Pod, node_name: str, shares: Sequence[DeviceShare]) -> list[DeviceShare]:
        """Reserves the GPUs and writes the pod's ConfigMap; returns the shares with the UUIDs of their GPUs."""
        request = parse_fraction_request({"metadata": {"annotations": dict(pod.metadata.annotations)}})
        node = self._nodes.get(node_name)
        if node is None:
            raise Unavailable(f"node {node_name} is gone")
        config_map = pod.metadata.annotations.get(labels.GPU_CONFIG, "")
        if not config_map and not is_simulated(node):
            await self._recreate(pod)
        gpus = await asyncio.gather(*(self.reservations.acquire(pod, node_name, share.index) for share in shares))
        if config_map:
            gpu_allocations = allocations(pod, request, node, shares, gpus)
            await self._write_config_map(pod, config_map, config_map_data(gpu_allocations, self._settings))
        return [replace(share, uuid=gpu.uuid) for share, gpu in zip(shares, gpus, strict=True)]

    async def _recreate(self, pod: Pod) -> NoReturn:
        """Deletes a pod that was created before the API server knew the webhook, and so has no GPU injection.

        Its controller creates the next one, which gets it. A pod without a controller is refused instead: nothing would
        replace it.
        """
        problem = f"pod {pod.metadata.namespace}/{pod.metadata.name} has no limit on its GPU fraction"
        try:
            await self._driver.get(MUTATING_WEBHOOK, WEBHOOK)
        except NotFound:
            raise Invalid(problem, hint="the webhook is not installed: see --webhook-url") from None
        if not any(owner.controller for owner in pod.metadata.owners):
            raise Invalid(problem, hint="it is older than the webhook: delete it and create it again")
        await self._store.delete(pod)
        raise Unavailable(f"{problem}; its controller creates it again")

    async def _break_claims(self, pod: Pod) -> None:
        """Breaks the claims of a pod that was not bound; otherwise every GPU that was tried would stay reserved.

        A binding that is still in flight fails too, because the pod changes. A binding that succeeded makes this a
        conflict.
        """
        for _ in range(_ATTEMPTS):
            try:
                await self.reservations.annotate(pod, labels.GPU_CLAIM_BROKEN, timestamp_text(time.time()))
            except (Conflict, NotFound):
                return
            except Unavailable:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            return

    async def _write_config_map(self, pod: Pod, name: str, data: dict[str, str]) -> None:
        meta = pod.metadata
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        config_map = {
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": {_MANAGED_BY: "aliquot"},
                "ownerReferences": [owner],
            },
            "immutable": True,  # users cannot raise a limit by editing it
            "data": data,
        }
        try:
            await self._driver.create(CONFIG_MAP, Document(config_map))
        except Exists:
            existing = await self._driver.get(CONFIG_MAP, name, meta.namespace)
            if existing.data.get("data") == data and _owner_uids(existing) == [meta.uid]:
                return
            if (existing.metadata.get("labels") or {}).get(_MANAGED_BY) != "aliquot":
                raise Invalid(
                    f"ConfigMap {meta.namespace}/{name} exists and is not managed by Aliquot", hint="delete it"
                ) from None
            # Left by an earlier attempt, or by an earlier pod of the same name.
            await self._driver.delete(CONFIG_MAP, name, meta.namespace, uid=existing.uid)
            try:
                await self._driver.create(CONFIG_MAP, Document(config_map))
            except Exists:
                raise Conflict(f"ConfigMap {meta.namespace}/{name} was written by another process") from None


def allocations(
    pod: Pod, request: FractionRequest, node: Node, shares: Sequence[DeviceShare], gpus: Sequence[ReservedGpu]
) -> tuple[GpuAllocation, ...]:
    """The pod's limits on each GPU, from the memory measured on the GPU, or else from what the node reports."""
    reported = {device.index: device for device in devices_of(node)}
    return tuple(
        _allocation(pod, request, node, reported.get(share.index, Device(index=share.index)), share, gpu)
        for share, gpu in zip(shares, gpus, strict=True)
    )


def _allocation(
    pod: Pod, request: FractionRequest, node: Node, reported: Device, share: DeviceShare, gpu: ReservedGpu
) -> GpuAllocation:
    memory = gpu.memory_mib or reported.memory_mib
    if not memory:
        raise Unavailable(
            f"the memory size of GPU {share.index} of node {node.metadata.name} is unknown",
            hint=f"label the node {labels.GPU_MEMORY}=MIB, as NVIDIA's GPU feature discovery does",
        )
    # A fraction is computed again from the measured memory: the scheduler only knew what the node reports.
    share = replace(share, memory_mib=request.memory_mib)
    device = Device(index=share.index, uuid=gpu.uuid, model=reported.model, memory_mib=memory)
    return gpu_allocation(device, share, SharingOptions(mode=request.mode), pod_uid=pod.metadata.uid)


def _owner_uids(document: Document) -> list[str]:
    return [str(owner.get("uid")) for owner in document.metadata.get("ownerReferences") or ()]
