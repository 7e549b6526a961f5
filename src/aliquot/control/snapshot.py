"""From the store's objects to what the scheduler looks at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from aliquot import labels, units
from aliquot.control.pods import is_preemptible, request_of
from aliquot.core import Device, Job, Node, Queue, Request, Share, Snapshot, Task, TaskState
from aliquot.core.model import Taint, Toleration
from aliquot.errors import Invalid
from aliquot.types import Namespace, Pod, Project, devices_of, shares_of
from aliquot.types import Node as NodeObject

_FINISHED = ("Succeeded", "Failed")
_NO_AGES: Mapping[str, float] = {}
# What was decided a moment ago and the store's picture may not show yet: pod uid -> (node, shares).
Assumed = Mapping[str, tuple[str, tuple[Share, ...]]]


def snapshot_of(
    nodes: Iterable[NodeObject],
    pods: Iterable[Pod],
    projects: Iterable[Project],
    namespaces: Mapping[str, Namespace],
    assumed: Assumed,
    ages: Mapping[str, float] = _NO_AGES,
) -> Snapshot:
    """`ages` says since when workloads exist, by job name: a new pod does not send its workload to the queue's end."""
    groups: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in pods:
        if _takes_part(pod):
            groups[pod.metadata.namespace, group_of(pod)].append(pod)
    jobs = [
        _job(namespace, group, members, namespaces, assumed, ages) for (namespace, group), members in groups.items()
    ]
    return Snapshot(
        tuple(_node(node) for node in nodes), tuple(_queue(project) for project in projects), tuple(filter(None, jobs))
    )


def group_of(pod: Pod) -> str:
    """The workload a pod belongs to; a pod of nobody is a group of its own."""
    return pod.metadata.labels.get(labels.WORKLOAD) or pod.metadata.name


def job_name(namespace: str, group: str) -> str:
    return f"{namespace}/{group}"


def _takes_part(pod: Pod) -> bool:
    """Pods that hold something, and pods that wait for us."""
    if pod.status.phase in _FINISHED:
        return False
    if pod.spec.node_name:
        return True
    ours = pod.spec.scheduler_name in labels.SCHEDULER_NAMES
    return ours and pod.metadata.deleted is None and not pod.spec.scheduling_gates


def _job(
    namespace: str,
    group: str,
    members: list[Pod],
    namespaces: Mapping[str, Namespace],
    assumed: Assumed,
    ages: Mapping[str, float],
) -> Job | None:
    place = namespaces.get(namespace)
    tasks = tuple(_task(pod, assumed) for pod in members)
    name = job_name(namespace, group)
    return Job(
        name=name,
        queue=labels.project_of(place.metadata.labels) if place else "",
        tasks=tasks,
        created=ages.get(name, min(pod.metadata.created or 0 for pod in members)),
        preemptible=all(is_preemptible(pod) for pod in members),
    )


def _task(pod: Pod, assumed: Assumed) -> Task:
    node, shares = _place(pod, assumed)
    if not node:
        state = TaskState.PENDING
    else:
        state = TaskState.RUNNING if pod.metadata.deleted is None else TaskState.RELEASING
    return Task(
        name=pod.metadata.name,
        request=_request(pod),
        state=state,
        node=node,
        shares=shares,
        selector=pod.spec.node_selector,
        tolerations=tuple(
            Toleration(one.key, None if one.operator == "Exists" else one.value, one.effect)
            for one in pod.spec.tolerations
        ),
    )


def _request(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        # Written past our checks by somebody else: it asks for more than there is, and its refusal says so.
        return Request(devices=1 << 20, milli=1000)


def _place(pod: Pod, assumed: Assumed) -> tuple[str, tuple[Share, ...]]:
    if pod.spec.node_name:
        try:
            held = shares_of(pod)
        except Invalid:
            held = ()
        return pod.spec.node_name, tuple(Share(one.index, one.milli, one.memory_mib) for one in held)
    return assumed.get(pod.metadata.uid, ("", ()))


def _node(node: NodeObject) -> Node:
    try:
        devices = devices_of(node)
    except Invalid:
        devices = ()
    room = {**node.status.capacity, **node.status.allocatable}
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
    return Node(
        name=node.metadata.name,
        devices=tuple(Device(one.index, one.memory_mib, one.healthy) for one in devices),
        cpu=units.milli(room.get("cpu", "0")),
        memory=units.quantity(room.get("memory", "0")),
        pods=int(units.quantity(room.get("pods", "110"))),
        labels=node.metadata.labels,
        taints=tuple(Taint(one.key, one.value, one.effect) for one in node.spec.taints),
        ready=ready and not node.spec.unschedulable and node.metadata.deleted is None,
        pool=node.metadata.labels.get(labels.NODE_POOL, "default"),
    )


def _queue(project: Project) -> Queue:
    spec = project.spec
    return Queue(
        name=project.metadata.name,
        gpu=spec.quota.gpu or 0,
        cpu=spec.quota.cpu,
        memory=spec.quota.memory,
        gpu_limit=spec.limit.gpu,
        over_quota=spec.over_quota,
    )
