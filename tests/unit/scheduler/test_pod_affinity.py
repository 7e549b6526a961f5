"""What pods say about their node and neighbours, as the scheduler is told it, and what it is not told."""

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
from support.stores.running import running, until

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "rack"}


def pod(name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    whole = {"containers": [{"name": "main"}], "schedulerName": "aliquot", **spec}
    return decode(Pod, {"metadata": {"name": name, "namespace": "ns", "labels": labels or {}}, "spec": whole})


def said(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(**parts: Any) -> Pod:
    """Required ones."""
    return pod(affinity={word: {REQUIRED: said} for word, said in parts.items()})


def test_node_affinity_is_alternatives_of_expressions() -> None:
    """Terms are alternatives, their expressions hold together, and fields mean the node's name."""
    made = affinity(
        nodeAffinity={
            "nodeSelectorTerms": [
                {"matchExpressions": [said("a", "In", "1", "2"), said("b", "Exists")]},
                {"matchFields": [said("metadata.name", "In", "n1")]},
                {},
            ]
        }
    )
    assert constraints_of(made).node == (
        (
            (NodeSelectorRequirement("a", "In", ("1", "2")), NodeSelectorRequirement("b", "Exists")),
            (NodeSelectorRequirement("", "In", ("n1",)),),
            (NodeSelectorRequirement("", "In"),),  # holds nowhere, as on Kubernetes
        ),
    )


@pytest.mark.parametrize(
    ("term", "rule"),
    [
        (WEB, ((NAMESPACE, "ns"), ("app", "web"))),
        ({**WEB, "namespaces": ["other"]}, (("app", "web"), (NAMESPACE, "other"))),
        ({**WEB, "namespaceSelector": {}}, (("app", "web"),)),
        (
            {**WEB, "labelSelector": {"matchExpressions": [said("app", "In", "web")]}},
            (("app", "web"), (NAMESPACE, "ns")),
        ),
    ],
)
def test_rules_about_neighbours(term: dict[str, Any], rule: tuple[tuple[str, str], ...]) -> None:
    """One required term is one rule: labels, where, and what counts as near."""
    wanted = PodAffinityTerm(tuple(sorted(rule)), "rack")
    assert constraints_of(affinity(podAffinity=[term])).pod_affinity == wanted
    assert constraints_of(affinity(podAntiAffinity=[term])).pod_anti_affinity == wanted


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (affinity(podAffinity=[WEB, WEB]), "more than one required term in podAffinity"),
        (affinity(podAntiAffinity=[{**WEB, "namespaces": ["a", "b"]}]), "several namespaces"),
        (affinity(podAffinity=[{**WEB, "namespaceSelector": {"matchLabels": {"x": "y"}}}]), "namespaces by labels"),
        (
            affinity(podAffinity=[{"labelSelector": {"matchExpressions": [said("a", "Exists")]}}]),
            "labels with one value",
        ),
        (affinity(podAffinity=[{"topologyKey": "rack"}]), "without a labelSelector"),
        (affinity(nodeAffinity={"nodeSelectorTerms": [{"matchExpressions": [said("a", "Like")]}]}), "Like"),
        (pod(topologySpreadConstraints=[{"whenUnsatisfiable": "DoNotSchedule"}]), "write ScheduleAnyway"),
        (pod(resourceClaims=[{"name": "gpu"}]), "write nvidia.com/gpu in limits"),
        (pod(containers=[{"name": "c", "resources": {"limits": {"rdma/hca": "1"}}}]), "resource rdma/hca"),
    ],
)
def test_what_cannot_be_said_is_a_hindrance(made: Pod, words: str) -> None:
    """The pod waits, and the sentence says what is the matter."""
    wanted = constraints_of(made)
    assert words in wanted.hindrance
    assert wanted.hindrance.startswith("pod p asks for what this scheduler cannot give")
    assert words in job_of(("ns", "p"), [made], None, None, None, {}).hindrance


@pytest.mark.parametrize(
    "made",
    [
        pod(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}),
        pod(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]),
        pod(containers=[{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"}}}]),
    ],
)
def test_wishes_hinder_nobody(made: Pod) -> None:
    """What is only preferred is left to the scheduler's own order."""
    assert constraints_of(made).hindrance == ""


def test_pods_of_a_job_share_their_rules() -> None:
    """One rule for all is the job's; two different ones cannot be said."""
    one, other = affinity(podAffinity=[WEB]), affinity(podAffinity=[{**WEB, "topologyKey": "zone"}])

    assert job_constraints([constraints_of(one), constraints_of(one)]).pod_affinity == constraints_of(one).pod_affinity
    assert "different rules" in job_constraints([constraints_of(one), constraints_of(other)]).hindrance


def test_only_labels_that_somebody_asks_for_are_shown() -> None:
    """And of those the ones that all pods of a job have."""
    pods = [pod("a", {"app": "web", "role": "master"}), pod("b", {"app": "web", "role": "worker"})]

    assert affinity_labels(pods, frozenset()) == {}
    assert affinity_labels(pods, frozenset({"app", "role", NAMESPACE})) == {"app": "web", NAMESPACE: "ns"}


def test_rule_names_what_it_watches() -> None:
    """The labels of a rule, and the namespace it is about."""
    assert affinity_label_keys(constraints_of(affinity(podAffinity=[WEB]))) == {"app", NAMESPACE}


async def test_watched_labels_follow_the_pods() -> None:
    """A rule's labels are watched from when its pod comes until it has gone, and each change is told."""
    store, around = Store(MemoryDriver()), SchedulingContext()
    informers = Informers(store.driver)
    around.watch_pods(informers.of(Pod))
    told: list[str] = []
    around.listen(told.append)
    made = affinity(podAntiAffinity=[WEB])

    def watches(*words: str) -> Callable[[], Awaitable[bool]]:
        async def so() -> bool:
            return around.affinity_label_keys == set(words)

        return so

    async with running(*(informer.run() for informer in informers)):
        await store.create(Namespace(metadata=Metadata(name="ns")))
        await store.create(Pod(metadata=Metadata(name="plain", namespace="ns")))
        seen = await store.create(made)
        await until(watches("app", NAMESPACE))
        await store.delete(seen, grace_seconds=0)
        await until(watches())

    assert told == ["", ""]
