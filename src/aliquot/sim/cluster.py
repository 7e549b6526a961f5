"""The live cluster as a scenario, in the form that `simulate` reads: what is there, what runs, what waits.

Read by the same rules as the live scheduler reads it. Names that several projects use are told apart by their
namespace, and what holds GPUs without belonging to a project is put under a project of its own, because what it holds
is not free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aliquot import labels, units
from aliquot.control.pods import PRIORITY_VALUES, is_preemptible, request_of
from aliquot.control.snapshot import group_of, job_name
from aliquot.core.model import DEFAULT_POOL, Request
from aliquot.errors import Invalid
from aliquot.types import (
    Department,
    Namespace,
    Node,
    NodePool,
    Pod,
    Project,
    SchedulingPolicy,
    Workload,
    devices_of,
    encode,
    shares_of,
)
from aliquot.types.pools import SchedulingPolicySpec

NOBODY = "(no project)"
_TERMS = ("quota", "limit", "overQuota", "overQuotaWeight", "priority", "pools")
_TOLERATION = ("key", "operator", "value", "effect")
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Objects:
    """What a scenario is made from."""

    nodes: Iterable[Node] = ()
    pods: Iterable[Pod] = ()
    namespaces: Iterable[Namespace] = ()
    projects: Iterable[Project] = ()
    departments: Iterable[Department] = ()
    workloads: Iterable[Workload] = ()
    pools: Iterable[NodePool] = ()
    policies: Iterable[SchedulingPolicy] = ()


def scenario_of(seen: Objects, now: float) -> dict[str, Any]:
    departments = {one.metadata.name for one in seen.departments}
    projects = {one.metadata.name for one in seen.projects}
    nodes = {one.metadata.name for one in seen.nodes}
    # A pod whose node has left holds nothing that could be given to another.
    pods = [pod for pod in seen.pods if _takes_part(pod) and (not pod.spec.node_name or pod.spec.node_name in nodes)]
    held = {(pod.spec.node_name, index) for pod in pods for index in _devices(pod)}
    workloads = _workloads(seen, pods, projects)
    orphans = [{"name": NOBODY}] if any(each["project"] == NOBODY for each in workloads) else []
    told = {
        "name": f"the cluster at {units.timestamp_text(int(now))}",
        "now": units.timestamp_text(now),
        "policy": _policy(seen.policies),
        "topology": next((list(pool.spec.topology) for pool in seen.pools if pool.metadata.name == DEFAULT_POOL), []),
        "nodes": [_node(one, held) for one in _by_name(seen.nodes)],
        "departments": [_department(one, list(seen.projects), projects) for one in _by_name(seen.departments)],
        "projects": [_project(one, departments, projects) for one in _by_name(seen.projects)] + orphans,
        "workloads": workloads,
    }
    return {word: value for word, value in told.items() if value}


def _by_name(objects: Iterable[Any]) -> list[Any]:
    return sorted(objects, key=lambda one: (one.metadata.namespace, one.metadata.name))


def _sparse(**fields: Any) -> dict[str, Any]:
    return {word: value for word, value in fields.items() if value not in (None, "", [], {}, ())}


def _policy(policies: Iterable[SchedulingPolicy]) -> dict[str, Any]:
    """The policy of pool default: the one that names it, else the one for every pool."""
    known = sorted(policies, key=lambda one: (DEFAULT_POOL not in one.spec.pools, one.metadata.name))
    spec = next((one.spec for one in known if DEFAULT_POOL in one.spec.pools or not one.spec.pools), None)
    return {} if spec is None else _policy_fields(spec)


def _policy_fields(spec: SchedulingPolicySpec) -> dict[str, Any]:
    bound = spec.disruption_bound
    shown = _sparse(
        steps=list(spec.steps),
        spare=spec.spare,
        placement=encode(spec.placement),
        staleGangGrace=spec.stale_gang_grace,
        terminatingGrace=spec.terminating_grace,
        usageWeight=spec.usage.weight or None,
        victims=spec.victims,
        disruptionBound=bound,
        shareUnit=spec.share_unit,
    )
    if bound is not None and bound < 0:
        shown["disruptionBound"] = None
    return shown


def _node(node: Node, held: set[tuple[str, int]]) -> dict[str, Any]:
    name = node.metadata.name
    try:
        # A broken GPU is nobody's; one that is still held is there until it is let go.
        devices = [one for one in devices_of(node) if one.healthy or (name, one.index) in held]
    except Invalid:
        devices = []
    room = {**node.status.capacity, **node.status.allocatable}
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
    shown = _sparse(
        name=name,
        gpus=[_sparse(index=one.index, memoryMiB=one.memory_mib, model=one.model) for one in devices],
        labels=dict(node.metadata.labels),
        taints=[_sparse(key=one.key, value=one.value, effect=one.effect) for one in node.spec.taints],
        pool=node.metadata.labels.get(labels.NODE_POOL),
    )
    shown["cpu"] = units.whole_units(units.milli(room.get("cpu", "0")))
    shown["memory"] = units.quantity_text(units.quantity(room.get("memory", "0")))
    shown["pods"] = int(units.quantity(room.get("pods", "110")))
    shown["ready"] = ready and not node.spec.unschedulable and node.metadata.deleted is None
    return shown


def _queue(queue: Project | Department) -> dict[str, Any]:
    spec = encode(queue.spec)
    created = queue.metadata.created
    return _sparse(
        **{word: spec[word] for word in _TERMS if word in spec},
        created=None if created is None else units.timestamp_text(created),
        reclaimMinRuntime=queue.spec.reclaim_min_runtime,
        preemptMinRuntime=queue.spec.preempt_min_runtime,
    )


def _department_name(name: str, projects: set[str]) -> str:
    """Queues are known by name alone in a scenario."""
    return f"department {name}" if name in projects else name


def _department(department: Department, below: list[Project], projects: set[str]) -> dict[str, Any]:
    """One without GPUs of its own has the sum of its projects' quotas, as for the live scheduler."""
    name = department.metadata.name
    shown = {"name": _department_name(name, projects), **_queue(department)}
    if not department.spec.quota.gpu:
        own = [one.spec for one in below if (one.spec.department or labels.DEFAULT_DEPARTMENT) == name]
        shown["quota"] = {**shown.get("quota", {}), "gpu": units.whole_units(sum(spec.quota.gpu for spec in own))}
    return shown


def _project(project: Project, departments: set[str], projects: set[str]) -> dict[str, Any]:
    above = project.spec.department or labels.DEFAULT_DEPARTMENT
    shown = {"name": project.metadata.name, **_queue(project)}
    if above in departments:
        shown["department"] = _department_name(above, projects)
    types = {
        "training": list(project.spec.node_types.training),
        "interactive": list(project.spec.node_types.interactive),
    }
    return {**shown, **_sparse(nodeTypes=_sparse(**types))}


def _workloads(seen: Objects, pods: list[Pod], projects: set[str]) -> list[dict[str, Any]]:
    owners = {one.metadata.name: labels.project_of(one.metadata.labels) for one in seen.namespaces}
    known = {(one.metadata.namespace, one.metadata.name): one for one in seen.workloads}
    groups: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in pods:
        groups[pod.metadata.namespace, group_of(pod)].append(pod)
    names = Counter(group for _, group in groups)
    tasks_called = Counter(pod.metadata.name for pod in pods)
    shown = []
    for (namespace, group), members in sorted(groups.items()):
        owner = owners.get(namespace, "")
        project = owner if owner in projects else NOBODY
        if project == NOBODY and not any(pod.spec.node_name for pod in members):
            continue  # nobody's, and it holds nothing
        name = group if names[group] == 1 else job_name(namespace, group)
        told = _workload(_by_name(members), known.get((namespace, group)))
        tasks = [_task(pod, tasks_called[pod.metadata.name] > 1) for pod in _by_name(members)]
        shown.append({"name": name, "project": project, **told, "tasks": tasks})
    return shown


def _takes_part(pod: Pod) -> bool:
    """Pods that hold something, and pods that wait for us."""
    if pod.status.phase in _FINISHED:
        return False
    ours = pod.spec.scheduler_name in labels.SCHEDULER_NAMES and pod.metadata.deleted is None
    return bool(pod.spec.node_name) or ours


def _workload(members: list[Pod], workload: Workload | None) -> dict[str, Any]:
    first = members[0]
    created = workload.metadata.created if workload else min(pod.metadata.created or 0 for pod in members)
    started = [pod.status.start_time for pod in members if pod.status.start_time is not None]
    value = PRIORITY_VALUES.get(first.spec.priority_class_name, first.spec.priority)
    shown = _sparse(
        type=workload.spec.type if workload else None,
        created=None if created is None else units.timestamp_text(created),
        started=units.timestamp_text(min(started)) if started else None,
        nodeSelector=dict(first.spec.node_selector),
        nodePools=list(workload.spec.node_pools) if workload else None,
        tolerations=[_toleration(encode(one)) for one in first.spec.tolerations],
        podLabels=dict(workload.spec.labels) if workload else None,
        minAvailable=workload.spec.min_available if workload else None,
        preemptionDelay=workload.spec.preemption_delay if workload else None,
        staleGangGrace=workload.spec.stale_gang_grace if workload else None,
        request=_request(_asked(first)),
    )
    if value is not None:
        shown["priority"] = value
    shown["preemptible"] = all(map(is_preemptible, members))
    return shown


def _toleration(told: dict[str, Any]) -> dict[str, Any]:
    return {word: told[word] for word in _TOLERATION if word in told}


def _asked(pod: Pod) -> Request:
    try:
        return request_of(pod)
    except ValueError:
        return Request()  # written past our checks: what it holds, if anything, is in its devices


def _request(request: Request) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if request.memory_mib:
        shown = _sparse(gpuMemoryMiB=request.memory_mib, devices=request.devices if request.devices > 1 else None)
    elif request.devices and not request.whole:
        shown = _sparse(
            gpuFraction=units.whole_units(request.milli), devices=request.devices if request.devices > 1 else None
        )
    elif request.devices:
        shown = {"gpu": request.devices}
    return shown | _sparse(
        cpu=units.whole_units(request.cpu) or None,
        memory=units.quantity_text(request.memory) if request.memory else None,
    )


def _task(pod: Pod, ambiguous: bool) -> dict[str, Any]:
    place = pod.metadata
    state = "gated" if pod.spec.scheduling_gates else "pending"
    shown: dict[str, Any] = {"name": f"{place.namespace}/{place.name}" if ambiguous else place.name, "state": state}
    if pod.spec.node_name:
        shown["state"] = "running" if place.deleted is None else "terminating"
        shown["node"] = pod.spec.node_name
        devices = _devices(pod)
        if len(devices) == _asked(pod).devices:  # else somebody wrote past our checks, and indices say nothing
            shown |= _sparse(devices=devices)
        if place.deleted is not None:
            shown["terminatingSince"] = units.timestamp_text(place.deleted)
    return shown


def _devices(pod: Pod) -> list[int]:
    try:
        return [share.index for share in shares_of(pod)]
    except Invalid:
        return []
