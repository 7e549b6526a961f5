"""What a workload has beside its pod: a service for its ports, and claims for its new volumes. Both go with it.

A claim that exists is somebody's, and only mounted. A new one is made once and then left alone: what is in it may be
the workload's only copy. Only an ephemeral one goes, and comes anew, with each stop. The service follows the workload's
ports.

    ingress, portforward, external-url, none    an address in the cluster
    nodeport                                    also a port on every node
    loadbalancer                                also an address of the cloud's
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
    words = [port.service_type or workload.spec.service_type or "" for port in ports]
    kind = next((_TYPES[word] for word in _TYPES if word in words), "ClusterIP")
    place = workload.metadata
    return Service(
        metadata=_metadata(workload, place.name),
        spec=ServiceSpec(
            type=kind,
            selector={labels.WORKLOAD: place.name},
            ports=tuple(_port(port, kind) for port in ports),
        ),
    )


def _port(port: Port, kind: str) -> ServicePort:
    outside = port.external or port.container
    wanted = outside if kind == "NodePort" and port.external else None
    return ServicePort(
        port=port.container if kind == "NodePort" else outside,
        name=port.name or f"port-{port.container}-{(port.protocol or 'TCP').lower()}",
        protocol=port.protocol or "TCP",
        target_port=port.container,
        node_port=wanted,
    )


def claims_of(workload: Workload, *, ephemeral: bool = False) -> list[Claim]:
    """Those that are made for it; or of them only the ephemeral ones."""
    claims = enumerate(workload.spec.storage.pvc)
    new = [(index, one) for index, one in claims if not one.existing and one.size is not None]
    return [_claim(workload, index, one) for index, one in new if one.ephemeral or not ephemeral]


def _claim(workload: Workload, index: int, one: ClaimMount) -> Claim:
    return Claim(
        metadata=_metadata(workload, claim_name(workload, index, one)),
        spec=ClaimSpec(
            access_modes=tuple(one.access_modes) or ("ReadWriteOnce",),
            resources=ClaimResources(requests={"storage": units.quantity_text(one.size or 0)}),
            storage_class_name=one.storage_class or None,
            volume_mode=one.volume_mode,
        ),
    )


def _metadata(workload: Workload, name: str) -> Metadata:
    place = workload.metadata
    owner = Owner(api_version=labels.API_VERSION, kind="Workload", name=place.name, uid=place.uid, controller=True)
    return Metadata(name=name, namespace=place.namespace, labels={labels.WORKLOAD: place.name}, owners=(owner,))


class ServiceAndClaimController:
    """The loop over workloads."""

    def __init__(self, store: Store, informers: Informers) -> None:
        self._store = store
        self._workloads = informers.of(Workload)
        self.controller = Controller("attached", self._reconcile)
        self._workloads.listen(self._changed)

    def _changed(self, key: Key, old: Workload | None, new: Workload | None) -> None:
        # Its status changes all the time, and changes nothing here.
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid or old.spec != new.spec):
            self.controller.enqueue(key)

    async def _reconcile(self, key: Key) -> None:
        workload = self._workloads.get(key[1], key[0])
        if workload is None or workload.metadata.deleted is not None:
            return
        if workload.spec.active:
            for claim in claims_of(workload):
                await self._claim(claim)
        else:
            for claim in claims_of(workload, ephemeral=True):
                await self._drop(claim, workload.metadata.uid)
        await self._serve(workload)

    async def _claim(self, claim: Claim) -> None:
        try:
            await self._store.create(claim)
        except Exists:
            seen = await self._store.get(Claim, claim.metadata.name, claim.metadata.namespace)
            if seen.metadata.deleted is not None:
                # Kubernetes keeps it as long as a pod has it; then there will be a new one.
                raise Unavailable(f"volume claim {claim.metadata.name} is still on its way out") from None

    async def _drop(self, claim: Claim, uid: str) -> None:
        with suppress(NotFound):
            seen = await self._store.get(Claim, claim.metadata.name, claim.metadata.namespace)
            if any(owner.uid == uid for owner in seen.metadata.owners):
                await self._store.delete(seen)

    async def _serve(self, workload: Workload) -> None:
        wanted = service_of(workload)
        try:
            seen = await self._store.get(Service, workload.metadata.name, workload.metadata.namespace)
        except NotFound:
            if wanted is not None:
                await self._store.create(wanted)
            return
        if not any(owner.uid == workload.metadata.uid for owner in seen.metadata.owners):
            return  # somebody else's, and stays
        if wanted is None:
            await self._store.delete(seen)
            return
        # What Kubernetes fills in stays as it is.
        given = {port.name: port.node_port for port in seen.spec.ports}
        ports = tuple(
            replace(port, node_port=port.node_port or given.get(port.name)) if wanted.spec.type != "ClusterIP" else port
            for port in wanted.spec.ports
        )
        spec = replace(seen.spec, type=wanted.spec.type, selector=wanted.spec.selector, ports=ports)
        await self._store.update(replace(seen, spec=spec), seen=seen)
