"""Where a pod's volumes are, and how a claim that waits for its first pod gets a volume.

A claim is bound, and then its volume may say which nodes reach it; or it is not, and its storage class says whether a
volume comes by itself (Immediate) or only once a pod has a node (WaitForFirstConsumer). In the second case whoever
places the pod has a part: it names the node on the claim, or, where nobody makes volumes, picks one that is there.

    node_requirements   pure: which nodes will do for a pod, or why none can now
    settle      before a pod is bound: its claims get their volumes on that node
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
from aliquot.planner.placement.fit.affinity import matches_requirement
from aliquot.scheduler.affinity import NO_CONSTRAINTS, PodConstraints, UnsupportedConstraint, node_alternatives
from aliquot.store.driver import Document, StoreDriver

SELECTED_NODE = "volume.kubernetes.io/selected-node"  # what the maker of volumes reads on a claim
_NOBODY = "kubernetes.io/no-provisioner"  # of classes whose volumes an administrator makes
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_SETTLE_SECONDS, _GLANCE_SECONDS = 20.0, 0.2


@dataclass(frozen=True, slots=True)
class Volume:
    """What we keep of a PersistentVolume."""

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
    """What we keep of a storage class."""

    name: str
    waits: bool = False  # for the first pod that uses a claim
    made: bool = True  # volumes are made on demand
    default: bool = False
    nodes: tuple[NodeSelectorTerms, ...] = ()

    @classmethod
    def of(cls, document: Document) -> StorageClass:
        data = document.data
        marks = document.metadata.get("annotations") or {}
        topologies = data.get("allowedTopologies") or ()
        return cls(
            name=document.name,
            waits=data.get("volumeBindingMode") == "WaitForFirstConsumer",
            made=data.get("provisioner") != _NOBODY,
            default=marks.get(_DEFAULT_CLASS) == "true",
            nodes=(tuple(_topology(one) for one in topologies),) if topologies else (),
        )


def _topology(one: Json) -> tuple[NodeSelectorRequirement, ...]:
    said = one.get("matchLabelExpressions") or ()
    return tuple(NodeSelectorRequirement(str(part.get("key")), "In", tuple(part.get("values") or ())) for part in said)


def _size(text: object) -> int:
    try:
        return units.quantity(text)
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class Storage:
    """What there is: the tables of informers, or plain ones."""

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
    found: list[NodeSelectorTerms] = []
    for name in claims_of(pod):
        one = _places_of_claim(name, storage.claim(name, pod.metadata.namespace), storage)
        if one.hindrance:
            return one
        found += one.node
    return PodConstraints(node=tuple(found)) if found else NO_CONSTRAINTS


def _places_of_claim(name: str, claim: Claim | None, storage: Storage) -> PodConstraints:
    if claim is None or claim.metadata.deleted is not None:
        return PodConstraints(hindrance=f"volume claim {name} does not exist; create it and this starts")
    if claim.status.phase == "Lost":
        return PodConstraints(hindrance=f"the volume of claim {name} is gone")
    if claim.spec.volume_name:
        volume = storage.volume(claim.spec.volume_name)
        if volume is None:
            return PodConstraints(hindrance=f"volume {claim.spec.volume_name} of claim {name} does not exist")
        return PodConstraints(node=volume.nodes, hindrance=volume.hindrance)
    kind = class_of(claim, storage)
    if kind is None or not kind.waits:
        return PodConstraints(hindrance=f"volume claim {name} has no volume yet")
    if node := claim.metadata.annotations.get(SELECTED_NODE):
        return PodConstraints(node=(((NodeSelectorRequirement("", "In", (node,)),),),))
    if kind.made:
        return PodConstraints(node=kind.nodes)
    fitting = _fitting(claim, kind, storage)
    if not fitting:
        return PodConstraints(hindrance=f"no free volume of storage class {kind.name} is large enough for claim {name}")
    if any(not one.nodes for one in fitting):
        return NO_CONSTRAINTS
    # One volume of them: wherever any of them is. Each says it as one list of alternatives.
    return PodConstraints(node=(tuple(term for one in fitting for term in one.nodes[0]),))


def class_of(claim: Claim, storage: Storage) -> StorageClass | None:
    wanted = claim.spec.storage_class_name
    return next((one for one in storage.classes() if one.name == wanted or (wanted is None and one.default)), None)


def _fitting(claim: Claim, kind: StorageClass, storage: Storage) -> list[Volume]:
    """Free volumes that could be a claim's, the smallest first."""
    size, modes = _size(claim.spec.resources.requests.get("storage", "0")), claim.spec.access_modes
    found = [
        one
        for one in storage.volumes()
        if one.free and one.storage_class == kind.name and one.size >= size and set(modes) <= set(one.modes)
    ]
    return sorted((one for one in found if not one.hindrance), key=lambda one: (one.size, one.name))


def _reaches(volume: Volume, node: Node) -> bool:
    return all(any(all(matches_requirement(one, node) for one in term) for term in terms) for terms in volume.nodes)


async def bind_claims(
    driver: StoreDriver, storage: Storage, pod: Pod, node: Node, seconds: float = _SETTLE_SECONDS
) -> None:
    """The pod's claims that wait for it get their volumes on this node. `Unavailable` when they do not in time: what
    was begun is found again by the next try."""
    waiting = [name for name in claims_of(pod) if await _begun(driver, storage, pod, name, node)]
    until = time.monotonic() + seconds
    while waiting:
        for name in list(waiting):
            if (await _claim(driver, name, pod.metadata.namespace)).spec.volume_name:
                waiting.remove(name)
        if waiting and time.monotonic() > until:
            raise Unavailable(f"volume claim {waiting[0]} has got no volume on {node.name} in {seconds:.0f} s")
        if waiting:
            await asyncio.sleep(_GLANCE_SECONDS)


async def _begun(driver: StoreDriver, storage: Storage, pod: Pod, name: str, node: Node) -> bool:
    """Whether the claim waits for a volume now."""
    namespace = pod.metadata.namespace
    seen = storage.claim(name, namespace)
    if seen is not None and seen.spec.volume_name:
        return False
    try:
        claim = await _claim(driver, name, namespace)
    except NotFound:
        raise Unavailable(f"volume claim {name} does not exist") from None
    kind = class_of(claim, storage)
    if claim.spec.volume_name or kind is None or not kind.waits:
        return False
    if kind.made:
        mark = {"metadata": {"annotations": {SELECTED_NODE: node.name}}}
        if claim.metadata.annotations.get(SELECTED_NODE) != node.name:
            await driver.patch(KINDS.of(Claim), name, namespace, mark, version=claim.metadata.version)
        return True
    volume = next((one for one in _fitting(claim, kind, storage) if _reaches(one, node)), None)
    if volume is None:
        raise Unavailable(f"no free volume of storage class {kind.name} is left on {node.name} for claim {name}")
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace}
    change = {"spec": {"claimRef": {**reference, "uid": claim.metadata.uid}}}
    await driver.patch(PERSISTENT_VOLUME, volume.name, "", change, version=volume.version)
    return True


async def _claim(driver: StoreDriver, name: str, namespace: str) -> Claim:
    return decode(Claim, (await driver.get(KINDS.of(Claim), name, namespace)).data)
