"""Translates the store's objects into the planner's model: jobs, nodes and queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from aliquot.scheduler.eviction_records import eviction_record_of, eviction_times
from aliquot.scheduler.nominations import nomination_of
from aliquot.scheduler.pod_groups import min_available_of, pools_of, project_of
from aliquot.scheduler.scheduling_context import EMPTY_CONTEXT, SchedulingContext

_FINISHED = ("Succeeded", "Failed")
_METADATA_FOR_SCHEDULING = ("uid", "deleted", "labels", "annotations", "owners")
# Where pods are that do not say it themselves: pod uid -> (node, shares).
Placements = Mapping[str, tuple[str, tuple[DeviceShare, ...]]]


def only_checkpoint_changed(old: Pod | None, new: Pod | None) -> bool:
    """Whether the only change is that the job saved a checkpoint. No job can start because of that."""
    if old is None or new is None or last_checkpoint_time(old) == last_checkpoint_time(new):
        return False
    return old.spec == new.spec and old.status.phase == new.status.phase and _same_metadata(old, new)


def same_for_scheduling(old: Pod | None, new: Pod | None) -> bool:
    """Whether nothing changed that scheduling depends on. Kubelets update much else of a pod."""
    if old is None or new is None:
        return False
    return (
        old.status.phase == new.status.phase
        and old.status.start_time == new.status.start_time
        and last_checkpoint_time(old) == last_checkpoint_time(new)
        and _same_metadata(old, new)
        and old.spec == new.spec
    )


def _same_metadata(old: Pod, new: Pod) -> bool:
    return all(getattr(old.metadata, name) == getattr(new.metadata, name) for name in _METADATA_FOR_SCHEDULING)


def job_name(namespace: str, group: str) -> str:
    return f"{namespace}/{group}"


def concerns_scheduler(pod: Pod) -> bool:
    """Whether the pod holds resources of a node, or waits for this scheduler."""
    if pod.status.phase in _FINISHED:
        return False
    if pod.spec.node_name:
        return True
    ours = pod.spec.scheduler_name in labels.SCHEDULER_NAMES
    return ours and pod.metadata.deleted is None and not pod.spec.scheduling_gates


def job_of(
    key: tuple[str, str],
    pods: Sequence[Pod],
    namespace: Namespace | None,
    project: Project | None,
    workload: Workload | None,
    placements: Placements,
    context: SchedulingContext = EMPTY_CONTEXT,
) -> Job:
    """The job that the pods of a group form. The age of its workload is its age: a new pod does not send it to the end
    of the queue."""
    types = _node_types(pods, project)
    constraints = [constraints_of(pod) for pod in pods]
    volume_constraints = [context.volume_constraints(pod) for pod in pods]
    of_job = job_constraints(constraints)
    oldest = min(pod.metadata.created or 0 for pod in pods)
    spec = None if workload is None else workload.spec
    starts = [pod.status.start_time for pod in pods if pod.status.start_time is not None]
    return Job(
        name=job_name(*key),
        queue=project_of(pods, namespace.metadata.labels if namespace else {}),
        tasks=tuple(
            _task(pod, placements, types, (*own.node, *volumes.node))
            for pod, own, volumes in zip(pods, constraints, volume_constraints, strict=True)
        ),
        created=oldest if workload is None else workload.metadata.created or oldest,
        priority=max(priority_of(pod) for pod in pods),
        preemptible=all(is_preemptible(pod) for pod in pods),
        pools=_pools(pods, workload, project),
        min_available=min_available_of(pods, context.min_available(*key)),
        started=min(starts, default=None),
        saved=_saved(pods),
        stops=eviction_times(workload.status) if workload is not None else (),
        preemption_delay=(spec.preemption_delay or 0) if spec is not None else 0,
        labels=affinity_labels(pods, context.affinity_label_keys),
        pod_affinity=of_job.pod_affinity,
        pod_anti_affinity=of_job.pod_anti_affinity,
        hindrance=of_job.hindrance or next((each.hindrance for each in volume_constraints if each.hindrance), ""),
    )


def _saved(pods: Sequence[Pod]) -> float | None:
    """The time up to which all bound pods have saved their work; None when one of them never saved."""
    times = [last_checkpoint_time(pod) for pod in pods if pod.spec.node_name]
    return min((time for time in times if time is not None), default=None) if None not in times else None


def _pools(pods: Sequence[Pod], workload: Workload | None, project: Project | None) -> tuple[str, ...]:
    if workload is not None and workload.spec.node_pools:
        return tuple(workload.spec.node_pools)
    if workload is None and (pools := pools_of(pods)):
        return pools
    return tuple(project.spec.default_pools) if project is not None else ()


def _node_types(pods: Sequence[Pod], project: Project | None) -> tuple[str, ...]:
    """The node types that the project allows: those for training when the pods are preemptible, otherwise those for
    interactive work."""
    if project is None:
        return ()
    types = project.spec.node_types
    return tuple(types.training if all(is_preemptible(pod) for pod in pods) else types.interactive)


def _task(pod: Pod, placements: Placements, types: tuple[str, ...], affinity: tuple[NodeSelectorTerms, ...]) -> Task:
    node, shares = _placement(pod, placements)
    request = _request(pod)
    state = TaskState.PENDING
    nomination = nomination_of(pod) if not node else None
    if nomination is not None and len(nomination[1]) != request.devices:
        nomination = None  # it does not fit the pod's request
    if node and (pod.metadata.deleted is not None or eviction_record_of(pod) is not None):
        state = TaskState.RELEASING
    elif node:
        state = TaskState.RUNNING
    elif nomination is not None:
        state, (node, shares) = TaskState.NOMINATED, nomination
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
            Toleration(each.key, None if each.operator == "Exists" else each.value, each.effect)
            for each in pod.spec.tolerations
        ),
        releasing_since=pod.metadata.deleted,
    )


def _request(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        # Another client wrote the pod without our validation. This request fits nowhere, and its refusal says so.
        return Request(devices=1 << 20, milli=1000)


def _placement(pod: Pod, placements: Placements) -> tuple[str, tuple[DeviceShare, ...]]:
    if pod.spec.node_name:
        try:
            shares = shares_of(pod)
        except Invalid:
            shares = ()
        if not shares:  # another scheduler placed it, without naming devices: see device_accounting
            return placements.get(pod.metadata.uid, (pod.spec.node_name, ()))
        return pod.spec.node_name, tuple(DeviceShare(share.index, share.milli, share.memory_mib) for share in shares)
    return placements.get(pod.metadata.uid, ("", ()))


def node_of(node: NodeObject) -> Node:
    try:
        devices = devices_of(node)
    except Invalid:
        devices = ()
    allocatable = {**node.status.capacity, **node.status.allocatable}
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    return Node(
        name=node.metadata.name,
        devices=tuple(Device(device.index, device.memory_mib, device.healthy) for device in devices),
        cpu=units.milli(allocatable.get("cpu", "0")),
        memory=units.quantity(allocatable.get("memory", "0")),
        pods=int(units.quantity(allocatable.get("pods", "110"))),
        labels=node.metadata.labels,
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in node.spec.taints),
        ready=ready and not node.spec.unschedulable and node.metadata.deleted is None,
        pool=node.metadata.labels.get(labels.NODE_POOL, "default"),
    )


def queues_of(projects: Iterable[Project], departments: Iterable[Department]) -> list[Queue]:
    """One queue for each project and each department. A project whose department does not exist (yet) has no parent."""
    by_name = {department.metadata.name: department for department in departments}
    projects = list(projects)
    queues = [_queue(project.metadata.name, project, _parent(project, by_name)) for project in projects]
    for name, department in by_name.items():
        own = [project.spec for project in projects if (project.spec.department or labels.DEFAULT_DEPARTMENT) == name]
        queues.append(_department(name, department, own))
    return queues


def _parent(project: Project, departments: Mapping[str, Department]) -> str:
    name = project.spec.department or labels.DEFAULT_DEPARTMENT
    return department_queue(name) if name in departments else ""


def department_queue(name: str) -> str:
    """The queue of a department. The prefix keeps it apart from a project of the same name."""
    return f"department/{name}"


def _queue(name: str, owner: Project | Department, parent: str = "") -> Queue:
    spec = owner.spec
    pools = (DEFAULT_POOL, *spec.pools)
    return Queue(
        name=name,
        parent=parent,
        pools={pool: _pool_quota(terms_in_pool(spec, pool)) for pool in pools},
        created=owner.metadata.created or 0,
        reclaim_min_runtime=spec.reclaim_min_runtime,
        preempt_min_runtime=spec.preempt_min_runtime,
    )


def _department(name: str, department: Department, projects: list[ProjectSpec]) -> Queue:
    """A department without a GPU quota has the sum of its projects' quotas, so that an administrator need not set
    both."""
    queue = _queue(department_queue(name), department)
    if department.spec.quota.gpu:
        return queue
    total = sum(spec.quota.gpu for spec in projects)
    default = queue.pool_quota(DEFAULT_POOL)
    return replace(queue, pools={**queue.pools, DEFAULT_POOL: replace(default, quota=(total, *default.quota[1:]))})


def _pool_quota(spec: SpecTerms) -> PoolQuota:
    quota, limit, weight = spec.quota, spec.limit, spec.over_quota_weight or Weights()
    return PoolQuota(
        quota=(quota.gpu, quota.cpu, quota.memory),
        limit=(limit.gpu, limit.cpu, limit.memory),
        weight=(_weight(weight.gpu), _weight(weight.cpu), _weight(weight.memory)),
        over_quota=spec.over_quota,
        priority=100 if spec.priority is None else spec.priority,
    )


def _weight(milli: int | None) -> float:
    return 1.0 if milli is None else milli / 1000
