"""What the live scheduler looks at, written as a scenario: played again, it decides the same.

Made from the very snapshot of its last decision. What a scenario cannot say is left out, and does not count for the
scheduler either: workloads whose project does not exist, and what is on nodes that have left. Times are seconds
relative to `now`, so that not a fraction of one is lost.
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
from aliquot.sim.placements import Places
from aliquot.sim.records import HOLDING

Json = dict[str, Any]
_STATE_WORDS = {state: state.value for state in TaskState} | {TaskState.RELEASING: "terminating"}
_FIXED_FROM = 100  # as load.py has it: from this priority on a workload is not preemptible unless it says so
_MOST_GPUS = 1 << 20  # more than any node has: what a scenario writes of a request that nobody can read


def scenario_of(decision: Decision) -> Json:
    snapshot, now = decision.snapshot, decision.now
    projects, departments = _queues(snapshot.queues)
    jobs = [job for job in sorted(snapshot.jobs, key=lambda job: job.name) if job.queue in projects]
    policy = decision.policies.get(DEFAULT_POOL, decision.policy)
    told: Json = {
        "name": f"the cluster at {units.timestamp_text(int(now))}",
        "now": units.timestamp_text(now),
        "policy": _policy(policy),
        "policies": _policies(decision, policy),
        "topology": {name: list(levels) for name, levels in snapshot.topologies.items()},
        "volumeClaims": _claims(snapshot),
        "nodes": [_node(node) for node in sorted(snapshot.nodes, key=lambda node: node.name)],
        "departments": [_queue(queue, "parent", now) for queue in departments.values()],
        "projects": [_queue(queue, _above(queue, departments), now) for queue in projects.values()],
        "workloads": _workloads(snapshot, jobs, now),
    }
    return {word: value for word, value in told.items() if value}


def _sparse(**fields: Any) -> Json:
    return {word: value for word, value in fields.items() if value not in (None, "", [], {}, ())}


def _differing(**fields: tuple[Any, Any]) -> Json:
    """Fields whose value is not the default."""
    return {word: value for word, (value, default) in fields.items() if value != default}


# ---------------------------------------------------------------- policy


def _policies(decision: Decision, policy: Policy) -> Json:
    """Those of other pools that have nodes, where they decide otherwise."""
    pools = sorted({node.pool for node in decision.snapshot.nodes} - {DEFAULT_POOL})
    own = {pool: decision.policies.get(pool, decision.policy) for pool in pools}
    return {pool: _policy(each) for pool, each in own.items() if each != policy}


def _policy(policy: Policy) -> Json:
    plain = Policy()
    return _differing(
        steps=(list(policy.steps), list(plain.steps)),
        spare=(policy.spare, plain.spare),
        placement=(_placement(policy), _placement(plain)),
        staleGangGrace=(-1 if policy.stale_grace < 0 else policy.stale_grace, plain.stale_grace),
        terminatingGrace=(policy.terminating_grace, plain.terminating_grace),
        usageWeight=(policy.usage_weight, plain.usage_weight),
        victims=(policy.victims, plain.victims),
        disruptionBound=(policy.disruption_bound, plain.disruption_bound),
        shareUnit=(policy.share_unit, plain.share_unit),
        saturationMultiplier=(policy.saturation_multiplier, plain.saturation_multiplier),
        departmentFirst=(policy.department_first, plain.department_first),
        holdAfter=(policy.hold_after, plain.hold_after),
        restartsPerHour=(policy.restarts_per_hour, plain.restarts_per_hour),
    )


def _placement(policy: Policy) -> Json:
    return {"gpu": policy.gpu, "cpu": policy.cpu, "device": policy.device}


# ---------------------------------------------------------------- nodes and queues


def _node(node: Node) -> Json:
    shown = {
        "name": node.name,
        **_devices(node.devices),
        "cpu": units.whole_units(node.cpu),
        "memory": units.quantity_text(node.memory),
    }
    shown |= _sparse(
        labels=dict(node.labels),
        taints=[_sparse(key=one.key, value=one.value, effect=one.effect) for one in node.taints],
        foreign=_amount(node.foreign),
    )
    return shown | _differing(
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
    cards = [
        {"index": one.index, "memoryMiB": one.memory_mib, **_sparse(profile=one.profile)}
        | _differing(healthy=(one.healthy, True))
        for one in devices
    ]
    return {"gpus": cards}


def _queues(queues: Iterable[Queue]) -> tuple[dict[str, Queue], dict[str, Queue]]:
    """Projects and departments by name: departments are what others hang from, and what is called one."""
    known = {queue.name: queue for queue in sorted(queues, key=lambda queue: queue.name)}
    inner = {queue.parent for queue in known.values()}
    departments = {name: queue for name, queue in known.items() if name in inner or name.startswith("department/")}
    return {name: queue for name, queue in known.items() if name not in departments}, departments


def _above(queue: Queue, departments: Mapping[str, Queue]) -> str:
    return "department" if queue.parent in departments else "parent"


def _queue(queue: Queue, above: str, now: float) -> Json:
    shown = {"name": queue.name, **_sparse(**{above: queue.parent}), **_terms(queue.pool_quota(DEFAULT_POOL))}
    shown |= {"created": queue.created - now}
    shown |= _differing(
        reclaimMinRuntime=(queue.reclaim_min_runtime, None),
        preemptMinRuntime=(queue.preempt_min_runtime, None),
    )
    return shown | _sparse(
        usage={word: part for word, part in zip(RESOURCES, queue.usage, strict=True) if part},
        pools={pool: _terms(terms) for pool, terms in sorted(queue.pools.items()) if pool != DEFAULT_POOL},
    )


def _terms(terms: PoolQuota) -> Json:
    weights = dict(zip(RESOURCES, terms.weight, strict=True))
    quota = {"gpu": None, **_bound(terms.quota)}  # what is not said would be no GPU at all
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
    shown = {"gpu": units.whole_units(gpu), "cpu": units.whole_units(cpu), "memory": memory}
    return {word: value for word, value in shown.items() if value}


# ---------------------------------------------------------------- workloads


def _claims(snapshot: Snapshot) -> list[str]:
    """Where nobody looks at claims, all that are mounted are there."""
    if snapshot.claims is None:
        return sorted({claim for job in snapshot.jobs for claim in job.claims})
    return sorted(snapshot.claims)


def _workloads(snapshot: Snapshot, jobs: list[Job], now: float) -> list[Json]:
    places = Places(snapshot)
    called = Counter(task.name for job in jobs for task in job.tasks)
    shown = []
    for job in jobs:
        prefix = f"{job.name}/" if any(called[task.name] > 1 for task in job.tasks) else ""
        tasks = [_placed(task, places, now) for task in job.tasks if places.stands(task)]
        if tasks:
            shown.append(_workload(job, [{"name": prefix + each.pop("name"), **each} for each in tasks], now))
    return shown


def _workload(job: Job, tasks: list[Json], now: float) -> Json:
    shared = _shared(tasks)
    shown = {"name": job.name, "project": job.queue, "created": job.created - now}
    shown |= _differing(priority=(job.priority, 50), preemptible=(job.preemptible, job.priority < _FIXED_FROM))
    for word, moment in (("started", job.started), ("saved", job.saved), ("staleSince", job.stale_since)):
        shown |= {} if moment is None else {word: moment - now}
    shown |= _sparse(
        stops=[stop - now for stop in job.stops],
        nodePools=list(job.pools),
        topology=_closeness(job.topology_constraint),
        subgroups=[_group(each) for each in job.subgroups],
        podLabels=dict(job.labels),
        podAffinity=_neighbours(job.pod_affinity),
        podAntiAffinity=_neighbours(job.pod_anti_affinity),
        volumeClaims=list(job.claims),
        hindrance=job.hindrance,
    )
    shown |= _differing(
        minAvailable=(job.min_available, None),
        minSubgroups=(job.min_subgroups, None),
        preemptionDelay=(job.preemption_delay, 0),
        staleGangGrace=(job.stale_grace if job.stale_grace is None else max(job.stale_grace, -1), None),
    )
    return {**shown, **shared, "tasks": [{k: v for k, v in each.items() if k not in shared} for each in tasks]}


def _shared(tasks: list[Json]) -> Json:
    """What all tasks of a workload have alike stands there once."""
    words = ("request", "nodeSelector", "tolerations", "nodeTypes", "nodeAffinity")
    first = tasks[0]
    return {word: first[word] for word in words if word in first and all(one.get(word) == first[word] for one in tasks)}


def _placed(task: Task, places: Places, now: float) -> Json:
    state = _STATE_WORDS[places.state(task)]
    shown = {"name": task.name, **_differing(state=(state, "pending"))}
    if state in HOLDING:
        shown |= {"node": task.node, **_sparse(devices=places.named(task))}
        if not places.is_plain(task):
            shown["shares"] = [{"index": s.index, "milli": s.milli, "memoryMiB": s.memory_mib} for s in task.shares]
    shown |= _sparse(
        subgroup=task.subgroup,
        order=task.order or None,
        request=_request(task.request),
        nodeSelector=dict(task.selector),
        tolerations=[_toleration(one) for one in task.tolerations],
        nodeTypes=list(task.node_types),
        nodeAffinity=[[[_expression(one) for one in term] for term in terms] for terms in task.affinity],
    )
    return shown | ({} if task.releasing_since is None else {"terminatingSince": task.releasing_since - now})


def _request(request: Request) -> Json:
    shown: Json = _sparse(
        cpu=units.whole_units(request.cpu) or None,
        memory=units.quantity_text(request.memory) if request.memory else None,
    )
    several = {"devices": request.devices} if request.devices > 1 else {}
    if request.mig:
        return {"mig": dict(request.mig), **shown}
    if request.memory_mib:
        return {"gpuMemoryMiB": request.memory_mib, **several, **shown}
    if request.whole:
        return {"gpu": request.devices, **shown}
    if request.devices and request.milli > GPU:
        return {"gpu": _MOST_GPUS, **shown}  # not a part of a GPU: it fits nowhere, here as there
    return {"gpuFraction": units.whole_units(request.milli), **several, **shown} if request.devices else shown


def _expression(one: NodeSelectorRequirement) -> Json:
    return {"key": one.key, "operator": one.operator, **_sparse(values=list(one.values))}


def _toleration(one: Toleration) -> Json:
    how = {"operator": "Exists"} if one.value is None else {"operator": "Equal", "value": one.value}
    return {**_sparse(key=one.key), **how, **_sparse(effect=one.effect)}


def _closeness(wanted: TopologyConstraint | None) -> Json:
    if wanted is None:
        return {}
    return {"name": wanted.topology, **_sparse(required=wanted.required, preferred=wanted.preferred)}


def _group(group: SubGroup) -> Json:
    shown = {"name": group.name, **_sparse(parent=group.parent, topology=_closeness(group.topology_constraint))}
    return shown | _differing(minAvailable=(group.min_available, None), minSubgroups=(group.min_subgroups, None))


def _neighbours(wanted: PodAffinityTerm | None) -> Json:
    return {} if wanted is None else {"labels": dict(wanted.labels), "topologyKey": wanted.key}
