"""The live scheduler's input as a scenario file: simulated, it gives the same plan.

The scenario is made from the snapshot of the last decision. It omits what the scheduler ignores too: workloads whose
project does not exist, and tasks on nodes that have left the cluster. Times are seconds relative to `now`, so that no
precision is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from aliquot import units
from aliquot.planner.model import (
    DEFAULT_POOL,
    GPU,
    RESOURCES,
    Amount,
    Bound,
    Device,
    Job,
    Node,
    NodeSelectorRequirement,
    PodAffinityTerm,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    SubGroup,
    Task,
    TaskState,
    Toleration,
    TopologyConstraint,
)
from aliquot.scheduler.last_decision import Decision
from aliquot.sim.device_holdings import DeviceHoldings
from aliquot.sim.model_builder import NONPREEMPTIBLE_FROM
from aliquot.sim.scenario_spec import PLACED_STATES

Json = dict[str, Any]
_STATE_WORDS = {state: state.value for state in TaskState} | {TaskState.RELEASING: "terminating"}
_MOST_GPUS = 1 << 20  # more than any node has: written for an invalid request, so that it fits on no node here either


def export_scenario(decision: Decision) -> Json:
    snapshot, now = decision.snapshot, decision.now
    projects, departments = _queues(snapshot.queues)
    jobs = [job for job in sorted(snapshot.jobs, key=lambda job: job.name) if job.queue in projects]
    policy = decision.policies.get(DEFAULT_POOL, decision.policy)
    scenario: Json = {
        "name": f"the cluster at {units.timestamp_text(int(now))}",
        "now": units.timestamp_text(now),
        "policy": _policy(policy),
        "policies": _policies(decision, policy),
        "topology": {name: list(levels) for name, levels in snapshot.topologies.items()},
        "volumeClaims": _claims(snapshot),
        "nodes": [_node(node) for node in sorted(snapshot.nodes, key=lambda node: node.name)],
        "departments": [_queue(queue, "parent", now) for queue in departments.values()],
        "projects": [_queue(queue, _parent_field(queue, departments), now) for queue in projects.values()],
        "workloads": _workloads(snapshot, jobs, now),
    }
    return {field: value for field, value in scenario.items() if value}


def _sparse(**fields: Any) -> Json:
    return {field: value for field, value in fields.items() if value not in (None, "", [], {}, ())}


def _differing(**fields: tuple[Any, Any]) -> Json:
    """Fields whose value is not the default."""
    return {field: value for field, (value, default) in fields.items() if value != default}


def _policies(decision: Decision, policy: Policy) -> Json:
    """Policies of the other pools that have nodes, where they differ from the default pool's."""
    pools = sorted({node.pool for node in decision.snapshot.nodes} - {DEFAULT_POOL})
    by_pool = {pool: decision.policies.get(pool, decision.policy) for pool in pools}
    return {pool: _policy(each) for pool, each in by_pool.items() if each != policy}


def _policy(policy: Policy) -> Json:
    defaults = Policy()
    return _differing(
        steps=(list(policy.steps), list(defaults.steps)),
        spare=(policy.spare, defaults.spare),
        placement=(_placement(policy), _placement(defaults)),
        staleGangGrace=(-1 if policy.stale_grace < 0 else policy.stale_grace, defaults.stale_grace),
        terminatingGrace=(policy.terminating_grace, defaults.terminating_grace),
        usageWeight=(policy.usage_weight, defaults.usage_weight),
        victims=(policy.victims, defaults.victims),
        disruptionBound=(policy.disruption_bound, defaults.disruption_bound),
        shareUnit=(policy.share_unit, defaults.share_unit),
        saturationMultiplier=(policy.saturation_multiplier, defaults.saturation_multiplier),
        departmentFirst=(policy.department_first, defaults.department_first),
        holdAfter=(policy.hold_after, defaults.hold_after),
        restartsPerHour=(policy.restarts_per_hour, defaults.restarts_per_hour),
    )


def _placement(policy: Policy) -> Json:
    return {"gpu": policy.gpu, "cpu": policy.cpu, "device": policy.device}


def _node(node: Node) -> Json:
    fields = {
        "name": node.name,
        **_devices(node.devices),
        "cpu": units.whole_units(node.cpu),
        "memory": units.quantity_text(node.memory),
    }
    fields |= _sparse(
        labels=dict(node.labels),
        taints=[_sparse(key=taint.key, value=taint.value, effect=taint.effect) for taint in node.taints],
        foreign=_amount(node.foreign),
    )
    return fields | _differing(
        pods=(node.pods, 110),
        ready=(node.ready, True),
        pool=(node.pool, DEFAULT_POOL),
        migStrategy=(node.mig, "none"),
    )


def _devices(devices: tuple[Device, ...]) -> Json:
    if not devices:
        return {}
    memory = devices[0].memory_mib
    if devices == tuple(Device(index, memory) for index in range(len(devices))):
        return {"gpus": len(devices), "gpuMemoryMiB": memory}
    gpus = [
        {"index": device.index, "memoryMiB": device.memory_mib, **_sparse(profile=device.profile)}
        | _differing(healthy=(device.healthy, True))
        for device in devices
    ]
    return {"gpus": gpus}


def _queues(queues: Iterable[Queue]) -> tuple[dict[str, Queue], dict[str, Queue]]:
    """Projects and departments by name. A queue with children is a department, and one named department/…."""
    by_name = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.name)}
    inner = {queue.parent for queue in by_name.values()}
    departments = {name: queue for name, queue in by_name.items() if name in inner or name.startswith("department/")}
    return {name: queue for name, queue in by_name.items() if name not in departments}, departments


def _parent_field(queue: Queue, departments: Mapping[str, Queue]) -> str:
    return "department" if queue.parent in departments else "parent"


def _queue(queue: Queue, parent_field: str, now: float) -> Json:
    parent = _sparse(**{parent_field: queue.parent})
    fields = {"name": queue.name, **parent, **_pool_quota(queue.pool_quota(DEFAULT_POOL))}
    fields |= {"created": queue.created - now}
    fields |= _differing(
        reclaimMinRuntime=(queue.reclaim_min_runtime, None),
        preemptMinRuntime=(queue.preempt_min_runtime, None),
    )
    return fields | _sparse(
        usage={resource: used for resource, used in zip(RESOURCES, queue.usage, strict=True) if used},
        pools={pool: _pool_quota(quota) for pool, quota in sorted(queue.pools.items()) if pool != DEFAULT_POOL},
    )


def _pool_quota(terms: PoolQuota) -> Json:
    weights = dict(zip(RESOURCES, terms.weight, strict=True))
    quota = {"gpu": None, **_bound(terms.quota)}  # a missing gpu would mean a quota of 0
    return {"quota": quota} | _differing(
        limit=(_bound(terms.limit), {}),
        overQuota=(terms.over_quota, True),
        overQuotaWeight=(weights["gpu"] if len(set(terms.weight)) == 1 else weights, 1),
        priority=(terms.priority, 100),
    )


def _bound(bound: Bound) -> Json:
    gpu, cpu, memory = bound
    return _sparse(
        gpu=None if gpu is None else units.whole_units(gpu),
        cpu=None if cpu is None else units.whole_units(cpu),
        memory=None if memory is None else units.quantity_text(memory),
    )


def _amount(amount: Amount) -> Json:
    gpu, cpu, memory = amount
    values = {"gpu": units.whole_units(gpu), "cpu": units.whole_units(cpu), "memory": memory}
    return {resource: value for resource, value in values.items() if value}


def _claims(snapshot: Snapshot) -> list[str]:
    """Existing volume claims. A snapshot that does not track claims counts every mounted one as existing."""
    if snapshot.claims is None:
        return sorted({claim for job in snapshot.jobs for claim in job.claims})
    return sorted(snapshot.claims)


def _workloads(snapshot: Snapshot, jobs: list[Job], now: float) -> list[Json]:
    holdings = DeviceHoldings(snapshot)
    name_counts = Counter(task.name for job in jobs for task in job.tasks)
    workloads = []
    for job in jobs:
        prefix = f"{job.name}/" if any(name_counts[task.name] > 1 for task in job.tasks) else ""
        tasks = [_task(task, holdings, now) for task in job.tasks if holdings.exists(task)]
        if tasks:
            workloads.append(_workload(job, [{"name": prefix + each.pop("name"), **each} for each in tasks], now))
    return workloads


def _workload(job: Job, tasks: list[Json], now: float) -> Json:
    shared = _common_fields(tasks)
    fields = {"name": job.name, "project": job.queue, "created": job.created - now}
    fields |= _differing(priority=(job.priority, 50), preemptible=(job.preemptible, job.priority < NONPREEMPTIBLE_FROM))
    for field, time in (("started", job.started), ("saved", job.saved), ("staleSince", job.stale_since)):
        fields |= {} if time is None else {field: time - now}
    fields |= _sparse(
        stops=[stop - now for stop in job.stops],
        nodePools=list(job.pools),
        topology=_topology(job.topology_constraint),
        subgroups=[_subgroup(each) for each in job.subgroups],
        podLabels=dict(job.labels),
        podAffinity=_pod_affinity(job.pod_affinity),
        podAntiAffinity=_pod_affinity(job.pod_anti_affinity),
        volumeClaims=list(job.claims),
        hindrance=job.hindrance,
    )
    fields |= _differing(
        minAvailable=(job.min_available, None),
        minSubgroups=(job.min_subgroups, None),
        preemptionDelay=(job.preemption_delay, 0),
        staleGangGrace=(job.stale_grace if job.stale_grace is None else max(job.stale_grace, -1), None),
    )
    return {**fields, **shared, "tasks": [{k: v for k, v in each.items() if k not in shared} for each in tasks]}


def _common_fields(tasks: list[Json]) -> Json:
    """Fields that all tasks have in common; they are written once, for the workload."""
    shareable = ("request", "nodeSelector", "tolerations", "nodeTypes", "nodeAffinity")
    first = tasks[0]
    return {
        field: first[field]
        for field in shareable
        if field in first and all(task.get(field) == first[field] for task in tasks)
    }


def _task(task: Task, holdings: DeviceHoldings, now: float) -> Json:
    state = _STATE_WORDS[holdings.state(task)]
    fields = {"name": task.name, **_differing(state=(state, "pending"))}
    if state in PLACED_STATES:
        fields |= {"node": task.node, **_sparse(devices=holdings.indices(task))}
        if not holdings.indices_suffice(task):
            fields["shares"] = [{"index": s.index, "milli": s.milli, "memoryMiB": s.memory_mib} for s in task.shares]
    fields |= _sparse(
        subgroup=task.subgroup,
        order=task.order or None,
        request=_request(task.request),
        nodeSelector=dict(task.selector),
        tolerations=[_toleration(toleration) for toleration in task.tolerations],
        nodeTypes=list(task.node_types),
        nodeAffinity=[[[_expression(each) for each in term] for term in terms] for terms in task.affinity],
    )
    return fields | ({} if task.releasing_since is None else {"terminatingSince": task.releasing_since - now})


def _request(request: Request) -> Json:
    fields: Json = _sparse(
        cpu=units.whole_units(request.cpu) or None,
        memory=units.quantity_text(request.memory) if request.memory else None,
    )
    devices = {"devices": request.devices} if request.devices > 1 else {}
    if request.mig:
        return {"mig": dict(request.mig), **fields}
    if request.memory_mib:
        return {"gpuMemoryMiB": request.memory_mib, **devices, **fields}
    if request.whole:
        return {"gpu": request.devices, **fields}
    if request.devices and request.milli > GPU:
        return {"gpu": _MOST_GPUS, **fields}  # more than one GPU per device: it fits on no node, as in the cluster
    return {"gpuFraction": units.whole_units(request.milli), **devices, **fields} if request.devices else fields


def _expression(requirement: NodeSelectorRequirement) -> Json:
    return {"key": requirement.key, "operator": requirement.operator, **_sparse(values=list(requirement.values))}


def _toleration(toleration: Toleration) -> Json:
    value = toleration.value
    match = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {**_sparse(key=toleration.key), **match, **_sparse(effect=toleration.effect)}


def _topology(constraint: TopologyConstraint | None) -> Json:
    if constraint is None:
        return {}
    levels = _sparse(required=constraint.required, preferred=constraint.preferred)
    return {"name": constraint.topology, **levels}


def _subgroup(group: SubGroup) -> Json:
    fields = {"name": group.name, **_sparse(parent=group.parent, topology=_topology(group.topology_constraint))}
    return fields | _differing(minAvailable=(group.min_available, None), minSubgroups=(group.min_subgroups, None))


def _pod_affinity(term: PodAffinityTerm | None) -> Json:
    return {} if term is None else {"labels": dict(term.labels), "topologyKey": term.key}
