"""Node affinity and pod affinity of pods, as the planner gets them, and what it does not support."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aliquot.api import Metadata, Namespace, Pod, decode
from aliquot.planner import NodeSelectorRequirement, PodAffinityTerm
from aliquot.scheduler.affinity import NAMESPACE, affinity_label_keys, affinity_labels, constraints_of, job_constraints
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.scheduler.snapshot import job_of
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.stores.running import running
from support.waiting import eventually

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "rack"}


def pod_with_spec(name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    full_spec = {"containers": [{"name": "main"}], "schedulerName": "aliquot", **spec}
    return decode(Pod, {"metadata": {"name": name, "namespace": "ns", "labels": labels or {}}, "spec": full_spec})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(**parts: Any) -> Pod:
    """A pod with required affinity terms."""
    return pod_with_spec(affinity={field: {REQUIRED: terms} for field, terms in parts.items()})


def test_node_affinity_is_alternatives_of_expressions() -> None:
    """Terms are alternatives, all expressions of a term must hold, and fields select by the node's name."""
    candidate = affinity(
        nodeAffinity={
            "nodeSelectorTerms": [
                {"matchExpressions": [expression("a", "In", "1", "2"), expression("b", "Exists")]},
                {"matchFields": [expression("metadata.name", "In", "n1")]},
                {},
            ]
        }
    )
    assert constraints_of(candidate).node == (
        (
            (NodeSelectorRequirement("a", "In", ("1", "2")), NodeSelectorRequirement("b", "Exists")),
            (NodeSelectorRequirement("", "In", ("n1",)),),
            (NodeSelectorRequirement("", "In"),),  # matches no node, as on Kubernetes
        ),
    )


@pytest.mark.parametrize(
    ("term", "selected"),
    [
        (WEB, ((NAMESPACE, "ns"), ("app", "web"))),
        ({**WEB, "namespaces": ["other"]}, (("app", "web"), (NAMESPACE, "other"))),
        ({**WEB, "namespaceSelector": {}}, (("app", "web"),)),
        (
            {**WEB, "labelSelector": {"matchExpressions": [expression("app", "In", "web")]}},
            (("app", "web"), (NAMESPACE, "ns")),
        ),
    ],
)
def test_pod_affinity_terms(term: dict[str, Any], selected: tuple[tuple[str, str], ...]) -> None:
    """A required term selects pods by labels and namespace, and has a topology key."""
    expected = PodAffinityTerm(tuple(sorted(selected)), "rack")
    assert constraints_of(affinity(podAffinity=[term])).pod_affinity == expected
    assert constraints_of(affinity(podAntiAffinity=[term])).pod_anti_affinity == expected


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (affinity(podAffinity=[WEB, WEB]), "more than one required term in podAffinity"),
        (affinity(podAntiAffinity=[{**WEB, "namespaces": ["a", "b"]}]), "several namespaces"),
        (affinity(podAffinity=[{**WEB, "namespaceSelector": {"matchLabels": {"x": "y"}}}]), "namespaces by labels"),
        (
            affinity(podAffinity=[{"labelSelector": {"matchExpressions": [expression("a", "Exists")]}}]),
            "labels with one value",
        ),
        (affinity(podAffinity=[{"topologyKey": "rack"}]), "without a labelSelector"),
        (affinity(nodeAffinity={"nodeSelectorTerms": [{"matchExpressions": [expression("a", "Like")]}]}), "Like"),
        (pod_with_spec(topologySpreadConstraints=[{"whenUnsatisfiable": "DoNotSchedule"}]), "write ScheduleAnyway"),
        (pod_with_spec(resourceClaims=[{"name": "gpu"}]), "write nvidia.com/gpu in limits"),
        (pod_with_spec(containers=[{"name": "c", "resources": {"limits": {"rdma/hca": "1"}}}]), "resource rdma/hca"),
    ],
)
def test_unsupported_constraint_is_a_hindrance(candidate: Pod, words: str) -> None:
    """The pod waits, and the hindrance says which constraint is not supported."""
    constraints = constraints_of(candidate)
    assert words in constraints.hindrance
    assert constraints.hindrance.startswith("pod p asks for what this scheduler cannot give")
    assert words in job_of(("ns", "p"), [candidate], None, None, None, {}).hindrance


@pytest.mark.parametrize(
    "candidate",
    [
        pod_with_spec(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}),
        pod_with_spec(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]),
        pod_with_spec(
            containers=[{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"}}}]
        ),
    ],
)
def test_preferences_are_ignored(candidate: Pod) -> None:
    """Preferred terms are no hindrance: the planner scores nodes in its own way."""
    assert constraints_of(candidate).hindrance == ""


def test_pods_of_a_job_share_their_terms() -> None:
    """A term that all pods have is the job's; different terms are a hindrance."""
    rack, zone = affinity(podAffinity=[WEB]), affinity(podAffinity=[{**WEB, "topologyKey": "zone"}])

    assert job_constraints([constraints_of(rack)] * 2).pod_affinity == constraints_of(rack).pod_affinity
    assert "different rules" in job_constraints([constraints_of(rack), constraints_of(zone)]).hindrance


def test_only_selected_labels_are_kept() -> None:
    """A job has the labels that affinity terms select by and that are equal on all its pods."""
    pods = [pod_with_spec("a", {"app": "web", "role": "master"}), pod_with_spec("b", {"app": "web", "role": "worker"})]

    assert affinity_labels(pods, frozenset()) == {}
    assert affinity_labels(pods, frozenset({"app", "role", NAMESPACE})) == {"app": "web", NAMESPACE: "ns"}


def test_label_keys_of_a_term() -> None:
    """The keys of its label selector, and the namespace key."""
    assert affinity_label_keys(constraints_of(affinity(podAffinity=[WEB]))) == {"app", NAMESPACE}


async def test_label_keys_follow_the_pods() -> None:
    """The context knows the label keys of a term while its pod exists, and notifies its listeners of changes."""
    store, context = Store(MemoryDriver()), SchedulingContext()
    informers = Informers(store.driver)
    context.watch_pods(informers.of(Pod))
    notified: list[str] = []
    context.listen(notified.append)
    candidate = affinity(podAntiAffinity=[WEB])

    def has_keys(*keys: str) -> Callable[[], Awaitable[bool]]:
        async def as_expected() -> bool:
            return context.affinity_label_keys == set(keys)

        return as_expected

    async with running(*(informer.run() for informer in informers)):
        await store.create(Namespace(metadata=Metadata(name="ns")))
        await store.create(Pod(metadata=Metadata(name="plain", namespace="ns")))
        seen = await store.create(candidate)
        await eventually(has_keys("app", NAMESPACE))
        await store.delete(seen, grace_seconds=0)
        await eventually(has_keys())

    assert notified == ["", ""]
