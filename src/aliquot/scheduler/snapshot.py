"""From the store's objects to what the scheduler looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aliquot import labels, units
from aliquot.api import (
    DEFAULT_POOL,
    Department,
    Namespace,
    Pod,
    Project,
    Weights,
    Workload,
    devices_of,
    shares_of,
    terms_in_pool,
)
from aliquot.api import Node as NodeObject
from aliquot.api import Terms as SpecTerms
from aliquot.api.pod import last_checkpoint_time
from aliquot.api.project import ProjectSpec
from aliquot.errors import Invalid
from aliquot.planner import (
    Device,
    DeviceShare,
    Job,
    Node,
    NodeSelectorTerms,
    PoolQuota,
    Queue,
    Request,
    Taint,
    Task,
    TaskState,
    Toleration,
)
from aliquot.podspec.requests import is_preemptible, priority_of, request_of
from aliquot.scheduler.affinity import affinity_labels, constraints_of, job_constraints
from aliquot.scheduler.eviction_records import eviction_record_of, eviction_times, nomination_of
from aliquot.scheduler.pod_groups import min_available_of, pools_of, project_of
from aliquot.scheduler.scheduling_context import EMPTY_CONTEXT, SchedulingContext

_FINISHED = ("Succeeded", "Failed")
# What was decided a moment ago and the store's picture may not show yet: pod uid -> (node, shares).
Assumed = Mapping[str, tuple[str, tuple[DeviceShare, ...]]]


def only_checkpoint_changed(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing has happened but that a job has saved its work: that lets nobody start."""
    if old is None or new is None or last_checkpoint_time(old) == last_checkpoint_time(new):
        return False
    kept = ("uid", "deleted", "labels", "annotations", "owners")
    return (
        old.spec == new.spec
        and old.status.phase == new.status.phase
        and all(getattr(old.metadata, name) == getattr(new.metadata, name) for name in kept)
    )


def same_for_scheduling(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing of a pod has changed that scheduling looks at: kubelets tell much about it."""
    if old is None or new is None:
        return False
    kept = ("uid", "deleted", "labels", "annotations", "owners")
    return (
        old.status.phase == new.status.phase
        and old.status.start_time == new.status.start_time
        and last_checkpoint_time(old) == last_checkpoint_time(new)
        and all(getattr(old.metadata, name) == getattr(new.metadata, name) for name in kept)
        and old.spec == new.spec
    )


def job_name(namespace: str, group: str) -> str:
    return f"{namespace}/{group}"


def concerns_scheduler(pod: Pod) -> bool:
    """Pods that hold something, and pods that wait for us."""
    if pod.status.phase in _FINISHED:
        return False
    if pod.spec.node_name:
        return True
    ours = pod.spec.scheduler_name in labels.SCHEDULER_NAMES
    return ours and pod.metadata.deleted is None and not pod.spec.scheduling_gates


def job_of(
    key: tuple[str, str],
    pods: list[Pod],
    namespace: Namespace | None,
    project: Project | None,
    workload: Workload | None,
    assumed: Assumed,
    around: SchedulingContext = EMPTY_CONTEXT,
) -> Job:
    """One job of the pods of a group. With its workload it keeps its age: a new pod does not send it to the end."""
    types = _node_types(pods, project)
    wanted, volumes = [constraints_of(pod) for pod in pods], [around.volume_constraints(pod) for pod in pods]
    rules = job_constraints(wanted)
    oldest = min(pod.metadata.created or 0 for pod in pods)
    spec = None if workload is None else workload.spec
    starts = [pod.status.start_time for pod in pods if pod.status.start_time is not None]
    return Job(
        name=job_name(*key),
        queue=project_of(pods, namespace.metadata.labels if namespace else {}),
        tasks=tuple(
            _task(pod, assumed, types, (*own.node, *places.node))
            for pod, own, places in zip(pods, wanted, volumes, strict=True)
        ),
        created=oldest if workload is None else workload.metadata.created or oldest,
        priority=max(priority_of(pod) for pod in pods),
        preemptible=all(is_preemptible(pod) for pod in pods),
        pools=_pools(pods, workload, project),
        min_available=min_available_of(pods, around.min_available(*key)),
        started=min(starts, default=None),
        saved=_saved(pods),
        stops=eviction_times(workload.status) if workload is not None else (),
        preemption_delay=(spec.preemption_delay or 0) if spec is not None else 0,
        labels=affinity_labels(pods, around.affinity_label_keys),
        pod_affinity=rules.near,
        pod_anti_affinity=rules.apart,
        hindrance=rules.hindrance or next((one.hindrance for one in volumes if one.hindrance), ""),
    )


def _saved(pods: list[Pod]) -> float | None:
    """What all of them have saved."""
    saved = [last_checkpoint_time(pod) for pod in pods if pod.spec.node_name]
    return min((one for one in saved if one is not None), default=None) if None not in saved else None


def _pools(pods: list[Pod], workload: Workload | None, project: Project | None) -> tuple[str, ...]:
    if workload is not None and workload.spec.node_pools:
        return tuple(workload.spec.node_pools)
    if workload is None and (named := pools_of(pods)):
        return named
    return tuple(project.spec.default_pools) if project is not None else ()


def _node_types(pods: list[Pod], project: Project | None) -> tuple[str, ...]:
    """Where a project holds its workloads to: training what can be stopped, interactive what cannot."""
    if project is None:
        return ()
    types = project.spec.node_types
    return tuple(types.training if all(is_preemptible(pod) for pod in pods) else types.interactive)


def _task(pod: Pod, assumed: Assumed, types: tuple[str, ...], affinity: tuple[NodeSelectorTerms, ...]) -> Task:
    node, shares = _place(pod, assumed)
    request = _request(pod)
    state = TaskState.PENDING
    promised = nomination_of(pod) if not node else None
    if promised is not None and len(promised[1]) != request.devices:
        promised = None  # not a place for this pod, whoever wrote it
    if node and (pod.metadata.deleted is not None or eviction_record_of(pod) is not None):
        state = TaskState.RELEASING
    elif node:
        state = TaskState.RUNNING
    elif promised is not None:
        state, (node, shares) = TaskState.NOMINATED, promised
    return Task(
        name=pod.metadata.name,
        request=request,
        state=state,
        node=node,
        shares=shares,
        selector=pod.spec.node_selector,
        node_types=types,
        affinity=affinity,
        tolerations=tuple(
            Toleration(one.key, None if one.operator == "Exists" else one.value, one.effect)
            for one in pod.spec.tolerations
        ),
        releasing_since=pod.metadata.deleted,
    )


def _request(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        # Written past our checks by somebody else: it asks for more than there is, and its refusal says so.
        return Request(devices=1 << 20, milli=1000)


def _place(pod: Pod, assumed: Assumed) -> tuple[str, tuple[DeviceShare, ...]]:
    if pod.spec.node_name:
        try:
            held = shares_of(pod)
        except Invalid:
            held = ()
        if not held:  # placed by others, who do not say which: see control.places
            return assumed.get(pod.metadata.uid, (pod.spec.node_name, ()))
        return pod.spec.node_name, tuple(DeviceShare(one.index, one.milli, one.memory_mib) for one in held)
    return assumed.get(pod.metadata.uid, ("", ()))


def node_of(node: NodeObject) -> Node:
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
    queues = [_queue(project.metadata.name, project, _parent(project, known)) for project in projects]
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


def _queue(name: str, made: Project | Department, parent: str = "") -> Queue:
    spec = made.spec
    pools = (DEFAULT_POOL, *spec.pools)
    return Queue(
        name=name,
        parent=parent,
        pools={pool: _terms(terms_in_pool(spec, pool)) for pool in pools},
        created=made.metadata.created or 0,
        reclaim_min_runtime=spec.reclaim_min_runtime,
        preempt_min_runtime=spec.preempt_min_runtime,
    )


def _department(name: str, department: Department, projects: list[ProjectSpec]) -> Queue:
    """One without GPUs of its own has the sum of its projects' quotas: nobody need set both."""
    queue = _queue(department_queue(name), department)
    if department.spec.quota.gpu:
        return queue
    total = sum(spec.quota.gpu for spec in projects)
    default = queue.pool_quota(DEFAULT_POOL)
    return replace(queue, pools={**queue.pools, DEFAULT_POOL: replace(default, quota=(total, *default.quota[1:]))})


def _terms(told: SpecTerms) -> PoolQuota:
    quota, limit, weight = told.quota, told.limit, told.over_quota_weight or Weights()
    return PoolQuota(
        quota=(quota.gpu, quota.cpu, quota.memory),
        limit=(limit.gpu, limit.cpu, limit.memory),
        weight=(_weight(weight.gpu), _weight(weight.cpu), _weight(weight.memory)),
        over_quota=told.over_quota,
        priority=100 if told.priority is None else told.priority,
    )


def _weight(milli: int | None) -> float:
    return 1.0 if milli is None else milli / 1000
