"""Which nodes can reach a pod's volumes, and how a claim that waits for its first pod gets a volume.

The volume of a bound claim may restrict the nodes that reach it. For an unbound claim the storage class decides whether
a volume is bound at once (Immediate) or only when a pod has a node (WaitForFirstConsumer). In the second case the
scheduler takes part: it writes the node on the claim, or, if the class has no provisioner, picks an existing volume.

    node_requirements   pure: which nodes a pod's volumes allow, or why none is possible now
    bind_claims         binds a pod's claims to volumes that its node reaches
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aliquot import units
from aliquot.api import KINDS, Claim, Json, Pod, decode
from aliquot.backends.kubernetes.unstructured_kinds import PERSISTENT_VOLUME
from aliquot.errors import NotFound, Unavailable
from aliquot.planner import Node, NodeSelectorRequirement, NodeSelectorTerms
from aliquot.planner.placement.fit.node_affinity import matches_requirement
from aliquot.scheduler.affinity import NO_CONSTRAINTS, PodConstraints, UnsupportedConstraint, node_alternatives
from aliquot.store.driver import Document, StoreDriver

SELECTED_NODE = "volume.kubernetes.io/selected-node"  # annotation of a claim, read by the provisioner
_NO_PROVISIONER = "kubernetes.io/no-provisioner"  # an administrator creates the volumes of such a class
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_BIND_SECONDS, _POLL_SECONDS = 20.0, 0.2


@dataclass(frozen=True, slots=True)
class Volume:
    """The fields of a PersistentVolume that placement depends on."""

    name: str
    version: str
    storage_class: str = ""
    size: int = 0
    modes: tuple[str, ...] = ()
    free: bool = False
    nodes: tuple[NodeSelectorTerms, ...] = ()
    hindrance: str = ""

    @classmethod
    def of(cls, document: Document) -> Volume:
        spec, status = document.data.get("spec") or {}, document.data.get("status") or {}
        required = (spec.get("nodeAffinity") or {}).get("required")
        nodes: tuple[NodeSelectorTerms, ...] = ()
        hindrance = ""
        try:
            nodes = (node_alternatives(required),) if required else ()
        except UnsupportedConstraint as exc:
            hindrance = f"volume {document.name} has a node affinity this scheduler cannot follow: {exc}"
        return cls(
            name=document.name,
            version=document.version,
            storage_class=spec.get("storageClassName") or "",
            size=_size((spec.get("capacity") or {}).get("storage", "0")),
            modes=tuple(spec.get("accessModes") or ()),
            free=status.get("phase") == "Available" and not spec.get("claimRef"),
            nodes=nodes,
            hindrance=hindrance,
        )


@dataclass(frozen=True, slots=True)
class StorageClass:
    """The fields of a StorageClass that placement depends on."""

    name: str
    waits_for_pod: bool = False  # WaitForFirstConsumer
    provisioned: bool = True  # a provisioner creates volumes on demand
    default: bool = False
    nodes: tuple[NodeSelectorTerms, ...] = ()

    @classmethod
    def of(cls, document: Document) -> StorageClass:
        data = document.data
        annotations = document.metadata.get("annotations") or {}
        topologies = data.get("allowedTopologies") or ()
        return cls(
            name=document.name,
            waits_for_pod=data.get("volumeBindingMode") == "WaitForFirstConsumer",
            provisioned=data.get("provisioner") != _NO_PROVISIONER,
            default=annotations.get(_DEFAULT_CLASS) == "true",
            nodes=(tuple(map(_topology_term, topologies)),) if topologies else (),
        )


def _topology_term(topology: Json) -> tuple[NodeSelectorRequirement, ...]:
    expressions = topology.get("matchLabelExpressions") or ()
    return tuple(
        NodeSelectorRequirement(str(expression.get("key")), "In", tuple(expression.get("values") or ()))
        for expression in expressions
    )


def _size(text: object) -> int:
    try:
        return units.quantity(text)
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class Storage:
    """Lookups of claims, volumes and classes; from informers, or from plain tables in tests."""

    claim: Callable[[str, str], Claim | None]  # by name and namespace
    volume: Callable[[str], Volume | None]
    volumes: Callable[[], Iterator[Volume]]
    classes: Callable[[], Iterator[StorageClass]]


def claims_of(pod: Pod) -> list[str]:
    """The names of the claims that a pod mounts."""
    names = []
    for volume in pod.spec.volumes:
        if (source := volume.get("persistentVolumeClaim")) is not None:
            names.append(str(source.get("claimName")))
        elif volume.get("ephemeral") is not None:
            names.append(f"{pod.metadata.name}-{volume.get('name')}")
    return names


def node_requirements(pod: Pod, storage: Storage) -> PodConstraints:
    terms: list[NodeSelectorTerms] = []
    for name in claims_of(pod):
        constraints = _claim_constraints(name, storage.claim(name, pod.metadata.namespace), storage)
        if constraints.hindrance:
            return constraints
        terms += constraints.node
    return PodConstraints(node=tuple(terms)) if terms else NO_CONSTRAINTS


def _claim_constraints(name: str, claim: Claim | None, storage: Storage) -> PodConstraints:
    if claim is None or claim.metadata.deleted is not None:
        return PodConstraints(hindrance=f"volume claim {name} does not exist; create it and this starts")
    if claim.status.phase == "Lost":
        return PodConstraints(hindrance=f"the volume of claim {name} is gone")
    if claim.spec.volume_name:
        volume = storage.volume(claim.spec.volume_name)
        if volume is None:
            return PodConstraints(hindrance=f"volume {claim.spec.volume_name} of claim {name} does not exist")
        return PodConstraints(node=volume.nodes, hindrance=volume.hindrance)
    storage_class = class_of(claim, storage)
    if storage_class is None or not storage_class.waits_for_pod:
        return PodConstraints(hindrance=f"volume claim {name} has no volume yet")
    if node := claim.metadata.annotations.get(SELECTED_NODE):
        return PodConstraints(node=(((NodeSelectorRequirement("", "In", (node,)),),),))
    if storage_class.provisioned:
        return PodConstraints(node=storage_class.nodes)
    volumes = _matching_volumes(claim, storage_class, storage)
    if not volumes:
        return PodConstraints(
            hindrance=f"no free volume of storage class {storage_class.name} is large enough for claim {name}"
        )
    if any(not volume.nodes for volume in volumes):
        return NO_CONSTRAINTS
    # Any of the volumes will do, so any node that reaches one of them. Each volume has one list of terms.
    return PodConstraints(node=(tuple(term for volume in volumes for term in volume.nodes[0]),))


def class_of(claim: Claim, storage: Storage) -> StorageClass | None:
    """The claim's storage class, or the cluster's default."""
    name = claim.spec.storage_class_name
    return next((item for item in storage.classes() if item.name == name or (name is None and item.default)), None)


def _matching_volumes(claim: Claim, storage_class: StorageClass, storage: Storage) -> list[Volume]:
    """Free volumes that the claim could be bound to, the smallest first."""
    size, modes = _size(claim.spec.resources.requests.get("storage", "0")), claim.spec.access_modes
    matching = [
        volume
        for volume in storage.volumes()
        if volume.free
        and not volume.hindrance
        and volume.storage_class == storage_class.name
        and volume.size >= size
        and set(modes) <= set(volume.modes)
    ]
    return sorted(matching, key=lambda volume: (volume.size, volume.name))


def _reaches(node: Node, volume: Volume) -> bool:
    return all(
        any(all(matches_requirement(requirement, node) for requirement in term) for term in terms)
        for terms in volume.nodes
    )


async def bind_claims(
    driver: StoreDriver, storage: Storage, pod: Pod, node: Node, seconds: float = _BIND_SECONDS
) -> None:
    """Binds the pod's claims that wait for a pod to volumes that this node reaches.

    Raises `Unavailable` if that takes longer than `seconds`; the next attempt continues where this one stopped.
    """
    waiting = [name for name in claims_of(pod) if await _start_binding(driver, storage, pod, name, node)]
    deadline = time.monotonic() + seconds
    while waiting:
        for name in list(waiting):
            if (await _read_claim(driver, name, pod.metadata.namespace)).spec.volume_name:
                waiting.remove(name)
        if waiting and time.monotonic() > deadline:
            raise Unavailable(f"volume claim {waiting[0]} has got no volume on {node.name} in {seconds:.0f} s")
        if waiting:
            await asyncio.sleep(_POLL_SECONDS)


async def _start_binding(driver: StoreDriver, storage: Storage, pod: Pod, name: str, node: Node) -> bool:
    """Asks for the claim's volume; False if the claim does not wait for this pod."""
    namespace = pod.metadata.namespace
    cached = storage.claim(name, namespace)
    if cached is not None and cached.spec.volume_name:
        return False
    try:
        claim = await _read_claim(driver, name, namespace)
    except NotFound:
        raise Unavailable(f"volume claim {name} does not exist") from None
    storage_class = class_of(claim, storage)
    if claim.spec.volume_name or storage_class is None or not storage_class.waits_for_pod:
        return False
    if storage_class.provisioned:
        selected = {"metadata": {"annotations": {SELECTED_NODE: node.name}}}
        if claim.metadata.annotations.get(SELECTED_NODE) != node.name:
            await driver.patch(KINDS.of(Claim), name, namespace, selected, version=claim.metadata.version)
        return True
    reachable = (volume for volume in _matching_volumes(claim, storage_class, storage) if _reaches(node, volume))
    volume = next(reachable, None)
    if volume is None:
        raise Unavailable(
            f"no free volume of storage class {storage_class.name} is left on {node.name} for claim {name}"
        )
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace}
    patch = {"spec": {"claimRef": {**reference, "uid": claim.metadata.uid}}}
    await driver.patch(PERSISTENT_VOLUME, volume.name, "", patch, version=volume.version)
    return True


async def _read_claim(driver: StoreDriver, name: str, namespace: str) -> Claim:
    return decode(Claim, (await driver.get(KINDS.of(Claim), name, namespace)).data)
