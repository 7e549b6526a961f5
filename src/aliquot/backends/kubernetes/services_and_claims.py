"""The Services and volume claims of workloads. Both are owned by the workload and deleted with it.

A claim that already exists is only mounted. A new claim is created once and then left alone: its volume may hold the
only copy of the workload's data. Only an ephemeral claim is deleted when the workload stops, and created again when
it starts. The Service follows the workload's ports.

    ingress, portforward, external-url, none    ClusterIP: an address inside the cluster
    nodeport                                    NodePort: also a port on every node
    loadbalancer                                LoadBalancer: also an address of the cloud provider
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from aliquot import labels, units
from aliquot.api import Claim, Metadata, Owner, Service, Workload
from aliquot.api.network import Port
from aliquot.api.persistent_volume_claim import ClaimResources, ClaimSpec
from aliquot.api.service import ServicePort, ServiceSpec
from aliquot.api.storage import ClaimMount
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Exists, NotFound, Unavailable
from aliquot.podspec.volumes import claim_name
from aliquot.store.informer import Informers, Key
from aliquot.store.typed_store import Store

_TYPES = {"loadbalancer": "LoadBalancer", "nodeport": "NodePort"}


def service_of(workload: Workload) -> Service | None:
    """None for a workload without ports."""
    ports = [port for port in workload.spec.ports if not port.exclude]
    if not ports:
        return None
    requested = [port.service_type or workload.spec.service_type or "" for port in ports]
    service_type = next((_TYPES[name] for name in _TYPES if name in requested), "ClusterIP")
    name = workload.metadata.name
    return Service(
        metadata=_metadata(workload, name),
        spec=ServiceSpec(
            type=service_type,
            selector={labels.WORKLOAD: name},
            ports=tuple(_port(port, service_type) for port in ports),
        ),
    )


def _port(port: Port, service_type: str) -> ServicePort:
    external = port.external or port.container
    return ServicePort(
        port=port.container if service_type == "NodePort" else external,
        name=port.name or f"port-{port.container}-{(port.protocol or 'TCP').lower()}",
        protocol=port.protocol or "TCP",
        target_port=port.container,
        node_port=external if service_type == "NodePort" and port.external else None,
    )


def claims_of(workload: Workload, *, ephemeral: bool = False) -> list[Claim]:
    """The claims that are created for a workload, or only the ephemeral ones of them."""
    return [
        _claim(workload, index, mount)
        for index, mount in enumerate(workload.spec.storage.pvc)
        if not mount.existing and mount.size is not None and (mount.ephemeral or not ephemeral)
    ]


def _claim(workload: Workload, index: int, mount: ClaimMount) -> Claim:
    return Claim(
        metadata=_metadata(workload, claim_name(workload, index, mount)),
        spec=ClaimSpec(
            access_modes=tuple(mount.access_modes) or ("ReadWriteOnce",),
            resources=ClaimResources(requests={"storage": units.quantity_text(mount.size or 0)}),
            storage_class_name=mount.storage_class or None,
            volume_mode=mount.volume_mode,
        ),
    )


def _metadata(workload: Workload, name: str) -> Metadata:
    meta = workload.metadata
    owner = Owner(api_version=labels.API_VERSION, kind="Workload", name=meta.name, uid=meta.uid, controller=True)
    return Metadata(name=name, namespace=meta.namespace, labels={labels.WORKLOAD: meta.name}, owners=(owner,))


class ServiceAndClaimController:
    """Reconciles the Service and the claims of each workload."""

    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._workloads = informers.of(Workload)
        self.controller = Controller("services and claims", self._reconcile)
        self._workloads.listen(self._changed)

    def _changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        # Only the spec matters here; the status changes all the time.
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec):
            self.controller.enqueue(key)

    async def _reconcile(self, key: Key) -> None:
        workload = self._workloads.get(key[1], key[0])
        if workload is None or workload.metadata.deleted is not None:
            return
        if workload.spec.active:
            for claim in claims_of(workload):
                await self._create_claim(claim)
        else:
            for claim in claims_of(workload, ephemeral=True):
                await self._delete_claim(claim, workload.metadata.uid)
        await self._update_service(workload)

    async def _create_claim(self, claim: Claim) -> None:
        try:
            await self._store.create(claim)
        except Exists:
            existing = await self._store.get(Claim, claim.metadata.name, claim.metadata.namespace)
            if existing.metadata.deleted is not None:
                # Kubernetes keeps it as long as a pod uses it; then a new one is created.
                raise Unavailable(f"volume claim {claim.metadata.name} is still being deleted") from None

    async def _delete_claim(self, claim: Claim, uid: str) -> None:
        with suppress(NotFound):
            existing = await self._store.get(Claim, claim.metadata.name, claim.metadata.namespace)
            if any(owner.uid == uid for owner in existing.metadata.owners):
                await self._store.delete(existing)

    async def _update_service(self, workload: Workload) -> None:
        wanted = service_of(workload)
        try:
            existing = await self._store.get(Service, workload.metadata.name, workload.metadata.namespace)
        except NotFound:
            if wanted is not None:
                await self._store.create(wanted)
            return
        if not any(owner.uid == workload.metadata.uid for owner in existing.metadata.owners):
            return  # belongs to another owner
        if wanted is None:
            await self._store.delete(existing)
            return
        # Keeps what Kubernetes filled in.
        node_ports = {port.name: port.node_port for port in existing.spec.ports}
        ports = tuple(
            replace(port, node_port=port.node_port or node_ports.get(port.name))
            if wanted.spec.type != "ClusterIP"
            else port
            for port in wanted.spec.ports
        )
        spec = replace(existing.spec, type=wanted.spec.type, selector=wanted.spec.selector, ports=ports)
        await self._store.update(replace(existing, spec=spec), seen=existing)
