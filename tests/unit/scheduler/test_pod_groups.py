"""Pods that others made: which of them are one job, how many start together, whose they are, how important."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot import labels
from aliquot.api import Metadata, Namespace, Owner, Pod, decode
from aliquot.api.pod import PodSpec
from aliquot.podspec.requests import default_priority, is_foreign, is_preemptible, priority_of, request_of
from aliquot.scheduler.pod_groups import group_of, min_available_of, pools_of, project_of
from aliquot.scheduler.snapshot import job_of


def pod(name: str = "p", owner: str = "", **marks: Any) -> Pod:
    """One with an owner such as Job/train."""
    kind, _, of = owner.partition("/")
    owners = (Owner(api_version="x/v1", kind=kind, name=of, uid="u", controller=True),) if owner else ()
    spec = PodSpec(scheduler_name=marks.pop("scheduler", "aliquot"), **marks.pop("spec", {}))
    return Pod(metadata=Metadata(name=name, namespace="ns", owners=owners, **marks), spec=spec)


@pytest.mark.parametrize(
    ("made", "group"),
    [
        (pod(labels={labels.WORKLOAD: "train1"}, owner="Workload/train1"), "train1"),
        (pod(annotations={"pod-group-name": "g"}, owner="Job/j"), "podgroup:g"),
        (pod(spec={"scheduling_group": {"podGroupName": "g"}}), "podgroup:g"),
        (pod(owner="Job/j"), "job:j"),
        (pod(owner="StatefulSet/db"), "statefulset:db"),
        (pod(owner="PyTorchJob/big"), "pytorchjob:big"),
        (pod("web-1", owner="ReplicaSet/web"), "web-1"),
        (pod("agent-1", owner="DaemonSet/agent"), "agent-1"),
        (pod("alone"), "alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_group_of_a_pod(made: Pod, group: str) -> None:
    """By what it says itself, else by who owns it, else alone."""
    assert group_of(made) == group


@pytest.mark.parametrize(
    ("pods", "told", "minimum"),
    [
        ([pod(owner="Job/j"), pod(owner="Job/j")], None, 1),
        ([pod(owner="Job/j", annotations={labels.MIN_AVAILABLE: "2"})], None, 2),
        ([pod(owner="Job/j", annotations={labels.MIN_AVAILABLE: "two"})], None, 1),
        ([pod(owner="StatefulSet/db")], None, 1),
        ([pod(owner="PyTorchJob/big")], None, None),
        ([pod(owner="PyTorchJob/big")], 4, 4),
        ([pod(owner="MPIJob/big", annotations={labels.MIN_AVAILABLE: "3"})], 4, 3),
        ([pod(annotations={"pod-group-name": "g"}, owner="Job/j")], None, None),
        ([pod(annotations={"pod-group-name": "g"}, owner="Job/j")], 8, 8),
        ([pod(labels={labels.WORKLOAD: "train1"}, owner="Workload/train1")], None, None),
        ([pod()], None, None),
    ],
)
def test_how_many_start_together(pods: list[Pod], told: int | None, minimum: int | None) -> None:
    """An annotation first, then what the group's own object says, then what its owner is."""
    assert min_available_of(pods, told) == minimum


@pytest.mark.parametrize(
    ("made", "namespace", "project"),
    [
        (pod(), {labels.PROJECT: "vision"}, "vision"),
        (pod(labels={"runai/queue": "vision"}), {}, "vision"),
        (pod(labels={"kai.scheduler/queue": "vision"}), {}, "vision"),
        (pod(labels={"runai/queue": "speech"}), {labels.PROJECT: "vision"}, "vision"),
        (pod(), {}, ""),
        (pod(scheduler="default-scheduler"), {labels.PROJECT: "vision"}, ""),
        (pod(scheduler="default-scheduler", labels={"runai/queue": "vision"}), {labels.PROJECT: "vision"}, "vision"),
        (pod(scheduler="default-scheduler", labels={"runai/queue": "speech"}), {labels.PROJECT: "vision"}, ""),
    ],
)
def test_who_pays(made: Pod, namespace: dict[str, str], project: str) -> None:
    """The namespace's project; elsewhere the one that the pod names. Another's quota is not to be had by a label."""
    assert project_of([made], namespace) == project


@pytest.mark.parametrize(
    ("made", "name", "value"),
    [
        (pod(owner="ReplicaSet/web", labels={"pod-template-hash": "1"}), "inference", 125),
        (pod(owner="ReplicaSet/web"), "train", 50),
        (pod(owner="ReplicaSet/fn", labels={"serving.knative.dev/revision": "fn-1"}), "inference", 125),
        (pod(owner="StatefulSet/nb", labels={"notebook-name": "nb"}), "build", 100),
        (pod(owner="Job/j"), "train", 50),
        (pod(), "train", 50),
        # Kubernetes writes 0 where nobody said anything.
        (pod(spec={"priority": 0}), "train", 50),
    ],
)
def test_priority_follows_from_what_made_a_pod(made: Pod, name: str, value: int) -> None:
    """Deployments and Knative serve, notebooks are worked in, all else trains."""
    assert (default_priority(made), priority_of(made)) == (name, value)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ({"spec": {"priority_class_name": "build", "priority": 100}}, 100),
        ({"labels": {"priorityClassName": "build"}}, 100),
        ({"labels": {"priorityClassName": "train"}, "spec": {"priority_class_name": "build"}}, 50),
        ({"labels": {"priorityClassName": "nobody-knows"}, "spec": {"priority_class_name": "inference"}}, 125),
        ({"spec": {"priority_class_name": "high", "priority": 1000}}, 1000),
        ({"spec": {"priority_class_name": "zero", "priority": 0}}, 0),
    ],
)
def test_what_a_pod_says_about_its_priority_wins(said: dict[str, Any], value: int) -> None:
    """Its label, then its class; a class of others counts by its number."""
    assert priority_of(pod(owner="ReplicaSet/web", **said)) == value


def test_pods_of_other_schedulers_are_never_stopped() -> None:
    """However unimportant: whoever placed them decides."""
    theirs, ours = pod(scheduler="default-scheduler"), pod(scheduler="runai-scheduler")

    assert (is_foreign(theirs), is_preemptible(theirs)) == (True, False)
    assert (is_foreign(ours), is_preemptible(ours)) == (False, True)
    assert not is_foreign(pod(scheduler=""))  # on one machine nobody says it


def test_job_of_pods_that_others_made() -> None:
    """Two pods of one Job in a project's namespace: one job of the project, of which each may start alone."""
    pods = [pod(f"j-{index}", owner="Job/j", labels={"kai.scheduler/node-pool": "fast"}) for index in range(2)]
    namespace = Namespace(metadata=Metadata(name="ns", labels={labels.PROJECT: "vision"}))

    job = job_of(("ns", "job:j"), pods, namespace, None, None, {})

    assert (job.name, job.queue, job.min_available, job.pools) == ("ns/job:j", "vision", 1, ("fast",))
    assert (len(job.tasks), job.preemptible, job.priority) == (2, True, 50)


def test_no_pool_is_no_pool() -> None:
    """Pods that name none leave it to their project."""
    assert pools_of([pod()]) == ()


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        ({"gpu-fraction": "0.5"}, (1, 500, 0)),
        ({"gpu-memory": "2000"}, (1, 0, 2000)),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, (2, 250, 0)),
    ],
)
def test_parts_of_a_gpu_as_others_write_them(annotations: dict[str, str], asked: tuple[int, int, int]) -> None:
    """The annotations of Run:ai and KAI say a part, an amount of memory, and on how many devices."""
    request = request_of(pod(annotations=annotations))
    assert (request.devices, request.milli, request.memory_mib) == asked


def test_containers_before_and_beside_count_as_kubernetes_counts_them() -> None:
    """The largest of those that run first, next to those that stay; and the pod's own overhead."""
    made = decode(
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
    assert (request_of(made).cpu, request_of(made).memory) == (5100, 2 << 30)
