"""Pods of any controller: their group, minimum, project, priority and request."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot import labels
from aliquot.api import Metadata, Namespace, Owner, Pod, decode
from aliquot.api.pod import PodSpec
from aliquot.podspec.requests import default_priority, is_foreign, is_preemptible, priority_of, request_of
from aliquot.scheduler.pod_groups import group_of, min_available_of, pools_of, project_of
from aliquot.scheduler.snapshot import job_of


def grouped_pod(name: str = "p", owner: str = "", **metadata: Any) -> Pod:
    """`owner`: such as Job/train."""
    kind, _, owner_name = owner.partition("/")
    owners = (Owner(api_version="x/v1", kind=kind, name=owner_name, uid="u", controller=True),) if owner else ()
    spec = PodSpec(scheduler_name=metadata.pop("scheduler", "aliquot"), **metadata.pop("spec", {}))
    return Pod(metadata=Metadata(name=name, namespace="ns", owners=owners, **metadata), spec=spec)


@pytest.mark.parametrize(
    ("candidate", "group"),
    [
        (grouped_pod(labels={labels.WORKLOAD: "train1"}, owner="Workload/train1"), "train1"),
        (grouped_pod(annotations={"pod-group-name": "g"}, owner="Job/j"), "podgroup:g"),
        (grouped_pod(spec={"scheduling_group": {"podGroupName": "g"}}), "podgroup:g"),
        (grouped_pod(owner="Job/j"), "job:j"),
        (grouped_pod(owner="StatefulSet/db"), "statefulset:db"),
        (grouped_pod(owner="PyTorchJob/big"), "pytorchjob:big"),
        (grouped_pod("web-1", owner="ReplicaSet/web"), "web-1"),
        (grouped_pod("agent-1", owner="DaemonSet/agent"), "agent-1"),
        (grouped_pod("alone"), "alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_group_of_a_pod(candidate: Pod, group: str) -> None:
    """Its own label or annotation decides, then its owner; without one it is alone."""
    assert group_of(candidate) == group


@pytest.mark.parametrize(
    ("pods", "from_object", "minimum"),
    [
        ([grouped_pod(owner="Job/j"), grouped_pod(owner="Job/j")], None, 1),
        ([grouped_pod(owner="Job/j", annotations={labels.MIN_AVAILABLE: "2"})], None, 2),
        ([grouped_pod(owner="Job/j", annotations={labels.MIN_AVAILABLE: "two"})], None, 1),
        ([grouped_pod(owner="StatefulSet/db")], None, 1),
        ([grouped_pod(owner="PyTorchJob/big")], None, None),
        ([grouped_pod(owner="PyTorchJob/big")], 4, 4),
        ([grouped_pod(owner="MPIJob/big", annotations={labels.MIN_AVAILABLE: "3"})], 4, 3),
        ([grouped_pod(annotations={"pod-group-name": "g"}, owner="Job/j")], None, None),
        ([grouped_pod(annotations={"pod-group-name": "g"}, owner="Job/j")], 8, 8),
        ([grouped_pod(labels={labels.WORKLOAD: "train1"}, owner="Workload/train1")], None, None),
        ([grouped_pod()], None, None),
    ],
)
def test_min_available(pods: list[Pod], from_object: int | None, minimum: int | None) -> None:
    """An annotation decides first, then the group's own object, then the kind of the owner."""
    assert min_available_of(pods, from_object) == minimum


@pytest.mark.parametrize(
    ("candidate", "namespace", "project"),
    [
        (grouped_pod(), {labels.PROJECT: "vision"}, "vision"),
        (grouped_pod(labels={"runai/queue": "vision"}), {}, "vision"),
        (grouped_pod(labels={"kai.scheduler/queue": "vision"}), {}, "vision"),
        (grouped_pod(labels={"runai/queue": "speech"}), {labels.PROJECT: "vision"}, "vision"),
        (grouped_pod(), {}, ""),
        (grouped_pod(scheduler="default-scheduler"), {labels.PROJECT: "vision"}, ""),
        (
            grouped_pod(scheduler="default-scheduler", labels={"runai/queue": "vision"}),
            {labels.PROJECT: "vision"},
            "vision",
        ),
        (grouped_pod(scheduler="default-scheduler", labels={"runai/queue": "speech"}), {labels.PROJECT: "vision"}, ""),
    ],
)
def test_charged_project(candidate: Pod, namespace: dict[str, str], project: str) -> None:
    """The namespace's project, otherwise the one that the pod's label names. A label cannot spend another's quota."""
    assert project_of([candidate], namespace) == project


@pytest.mark.parametrize(
    ("candidate", "name", "value"),
    [
        (grouped_pod(owner="ReplicaSet/web", labels={"pod-template-hash": "1"}), "inference", 125),
        (grouped_pod(owner="ReplicaSet/web"), "train", 50),
        (grouped_pod(owner="ReplicaSet/fn", labels={"serving.knative.dev/revision": "fn-1"}), "inference", 125),
        (grouped_pod(owner="StatefulSet/nb", labels={"notebook-name": "nb"}), "build", 100),
        (grouped_pod(owner="Job/j"), "train", 50),
        (grouped_pod(), "train", 50),
        # Kubernetes writes 0 where no priority was given.
        (grouped_pod(spec={"priority": 0}), "train", 50),
    ],
)
def test_default_priority_follows_from_the_owner(candidate: Pod, name: str, value: int) -> None:
    """Deployments and Knative are inference, notebooks are interactive, everything else is training."""
    assert (default_priority(candidate), priority_of(candidate)) == (name, value)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"spec": {"priority_class_name": "build", "priority": 100}}, 100),
        ({"labels": {"priorityClassName": "build"}}, 100),
        ({"labels": {"priorityClassName": "train"}, "spec": {"priority_class_name": "build"}}, 50),
        ({"labels": {"priorityClassName": "nobody-knows"}, "spec": {"priority_class_name": "inference"}}, 125),
        ({"spec": {"priority_class_name": "high", "priority": 1000}}, 1000),
        ({"spec": {"priority_class_name": "zero", "priority": 0}}, 0),
    ],
)
def test_priority_given_by_the_pod(given: dict[str, Any], value: int) -> None:
    """Its label decides, then its priority class; an unknown class counts by its number."""
    assert priority_of(grouped_pod(owner="ReplicaSet/web", **given)) == value


def test_pods_of_other_schedulers_are_not_preemptible() -> None:
    """Whatever their priority: only their own scheduler may stop them."""
    theirs, ours = grouped_pod(scheduler="default-scheduler"), grouped_pod(scheduler="runai-scheduler")

    assert (is_foreign(theirs), is_preemptible(theirs)) == (True, False)
    assert (is_foreign(ours), is_preemptible(ours)) == (False, True)
    assert not is_foreign(grouped_pod(scheduler=""))  # on one machine the name is empty


def test_job_of_pods_of_another_controller() -> None:
    """Two pods of one Job in a project's namespace form one job of the project, and each may start alone."""
    pods = [grouped_pod(f"j-{index}", owner="Job/j", labels={"kai.scheduler/node-pool": "fast"}) for index in range(2)]
    namespace = Namespace(metadata=Metadata(name="ns", labels={labels.PROJECT: "vision"}))

    job = job_of(("ns", "job:j"), pods, namespace, None, None, {})

    assert (job.name, job.queue, job.min_available, job.pools) == ("ns/job:j", "vision", 1, ("fast",))
    assert (len(job.tasks), job.preemptible, job.priority) == (2, True, 50)


def test_no_pool_label() -> None:
    """For pods without the label the project decides."""
    assert pools_of([grouped_pod()]) == ()


@pytest.mark.parametrize(
    ("annotations", "requested"),
    [
        ({"gpu-fraction": "0.5"}, (1, 500, 0)),
        ({"gpu-memory": "2000"}, (1, 0, 2000)),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, (2, 250, 0)),
    ],
)
def test_fraction_annotations_of_other_systems(annotations: dict[str, str], requested: tuple[int, int, int]) -> None:
    """Annotations of Run:ai and KAI give a fraction, an amount of memory, and a number of devices."""
    request = request_of(grouped_pod(annotations=annotations))
    assert (request.devices, request.milli, request.memory_mib) == requested


def test_init_containers_and_sidecars_count_as_on_kubernetes() -> None:
    """The largest init container, together with the sidecars, and the pod's overhead."""
    candidate = decode(
        Pod,
        {
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [
                    {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "first", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}},
                ],
                "containers": [{"name": "main", "resources": {"requests": {"cpu": "2", "memory": "2Gi"}}}],
                "overhead": {"cpu": "100m"},
            },
        },
    )
    assert (request_of(candidate).cpu, request_of(candidate).memory) == (5100, 2 << 30)
