"""From the store's objects to what the scheduler looks at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from aliquot import labels, units
from aliquot.control.pods import is_preemptible, priority_of, request_of
from aliquot.core import (
    Device,
    Job,
    Node,
    Queue,
    Request,
    Share,
    Snapshot,
    Taint,
    Task,
    TaskState,
    Terms,
    Toleration,
)
from aliquot.errors import Invalid
from aliquot.types import Department, Namespace, Pod, Project, devices_of, shares_of
from aliquot.types import Node as NodeObject
from aliquot.types.common import Weights
from aliquot.types.organisation import DEFAULT_POOL, DepartmentSpec, ProjectSpec, terms
from aliquot.types.organisation import Terms as SpecTerms

_FINISHED = ("Succeeded", "Failed")
_NO_AGES: Mapping[str, float] = {}
# What was decided a moment ago and the store's picture may not show yet: pod uid -> (node, shares).
Assumed = Mapping[str, tuple[str, tuple[Share, ...]]]


def snapshot_of(
    nodes: Iterable[NodeObject],
    pods: Iterable[Pod],
    projects: Iterable[Project],
    departments: Iterable[Department],
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
        tuple(_node(node) for node in nodes), tuple(queues_of(projects, departments)), tuple(filter(None, jobs))
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
        priority=max(priority_of(pod) for pod in members),
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


def queues_of(projects: Iterable[Project], departments: Iterable[Department]) -> list[Queue]:
    """Projects under their departments. One whose department does not exist (yet) stands alone."""
    known = {department.metadata.name: department for department in departments}
    projects = list(projects)
    queues = [_queue(project.metadata.name, project.spec, _parent(project, known)) for project in projects]
    for name, department in known.items():
        own = [project.spec for project in projects if (project.spec.department or labels.DEFAULT_DEPARTMENT) == name]
        queues.append(_department(name, department, own))
    return queues


def _parent(project: Project, known: Mapping[str, Department]) -> str:
    name = project.spec.department or labels.DEFAULT_DEPARTMENT
    return department_queue(name) if name in known else ""


def department_queue(name: str) -> str:
    """A department may have the name of a project."""
    return f"department/{name}"


def _queue(name: str, spec: ProjectSpec | DepartmentSpec, parent: str = "") -> Queue:
    pools = (DEFAULT_POOL, *spec.pools)
    return Queue(
        name=name,
        parent=parent,
        pools={pool: _terms(terms(spec, pool)) for pool in pools},
        reclaim_min_runtime=spec.reclaim_min_runtime,
        preempt_min_runtime=spec.preempt_min_runtime,
    )


def _department(name: str, department: Department, projects: list[ProjectSpec]) -> Queue:
    """One without GPUs of its own has the sum of its projects' quotas: nobody need set both."""
    queue = _queue(department_queue(name), department.spec)
    if department.spec.quota.gpu:
        return queue
    total = sum(spec.quota.gpu for spec in projects)
    default = queue.terms(DEFAULT_POOL)
    return replace(queue, pools={**queue.pools, DEFAULT_POOL: replace(default, quota=(total, *default.quota[1:]))})


def _terms(told: SpecTerms) -> Terms:
    quota, limit, weight = told.quota, told.limit, told.over_quota_weight or Weights()
    return Terms(
        quota=(quota.gpu, quota.cpu, quota.memory),
        limit=(limit.gpu, limit.cpu, limit.memory),
        weight=(_weight(weight.gpu), _weight(weight.cpu), _weight(weight.memory)),
        over_quota=told.over_quota,
        priority=100 if told.priority is None else told.priority,
    )


def _weight(milli: int | None) -> float:
    return 1.0 if milli is None else milli / 1000
