"""Reads the scenario file, field by field, into the dataclasses of scenario_spec.py. Fields are added, never renamed.

    read_scenarios   data of a file -> scenarios, or `Invalid` with every fault and its path

references.py checks that the names in a file belong together.
"""

from __future__ import annotations

import re
from typing import Any

from aliquot import units
from aliquot.errors import Invalid
from aliquot.planner.model import DEFAULT_POOL, STEPS, DeviceShare, NodeSelectorRequirement, Policy, Taint, Toleration
from aliquot.sim.field_readers import (
    Field,
    FieldPath,
    Fields,
    InvalidValue,
    Reader,
    choice,
    flag,
    list_of,
    map_of,
    milli,
    name,
    number,
    object_of,
    read_object,
    size,
    text,
    time_value,
    whole,
)
from aliquot.sim.references import check_references
from aliquot.sim.scenario_spec import (
    TASK_STATES,
    WORKLOAD_TYPES,
    GpuSpec,
    NodeSpec,
    PodAffinitySpec,
    PoolQuotaSpec,
    QueueSpec,
    RequestSpec,
    Scenario,
    Step,
    SubgroupSpec,
    TaskSpec,
    TopologySpec,
    WorkloadSpec,
)

_PROFILE = re.compile(r"^[1-9][0-9]?g\.[0-9]{1,4}gb(\+[a-z.]+)?$")


def read_scenarios(data: Any) -> list[Scenario]:
    """The scenarios of a file, which holds one or a list of them."""
    root = FieldPath()
    entries = [(root.at(index), raw) for index, raw in enumerate(data)] if type(data) is list else [(root, data)]
    scenarios = []
    for path, raw in entries:
        scenario = Scenario(**read_object(raw, _SCENARIO, path, ()))
        check_references(scenario, raw if type(raw) is dict else {}, path)
        scenarios.append(scenario)
    if root.faults:
        raise Invalid.because("not a valid scenario", root.faults)
    return scenarios


def _amounts(value: Any, path: FieldPath, key: Any) -> dict[str, int | None]:
    return dict(read_object(value, _AMOUNTS, path.at(key), ()))


def _weights(value: Any, path: FieldPath, key: Any) -> dict[str, float]:
    if type(value) in (int, float):
        weight = number()(value, path, key)
        return {"gpu": weight, "cpu": weight, "memory": weight}
    return dict(read_object(value, _NUMBERS, path.at(key), ()))


def _mig_profiles(value: Any, path: FieldPath, key: Any) -> dict[str, int]:
    counts: dict[str, int] = map_of(whole(0, 100_000))(value, path, key)
    for profile in counts:
        if not _PROFILE.match(profile):
            path.at(key, profile).fault("is not a MIG profile such as 1g.5gb")
    return counts


def _gpus(value: Any, path: FieldPath, key: Any) -> int | tuple[GpuSpec, ...]:
    if type(value) is not list:
        count: int = whole(0, 1024)(value, path, key)
        return count
    gpus: tuple[GpuSpec | None, ...] = list_of(object_of(_GPU, GpuSpec, ("index",)))(value, path, key)
    indices = [gpu.index for gpu in gpus if gpu]
    for position, index in enumerate(indices):
        if index in indices[:position]:
            path.at(key, position, "index").fault(f"GPU {index} appears twice")
    return tuple(gpu for gpu in gpus if gpu)


def _taint(value: Any, path: FieldPath, key: Any) -> Taint | None:
    taint: Taint | None = object_of(_TAINT, Taint, ("key",))(value, path, key)
    return taint


def _toleration(value: Any, path: FieldPath, key: Any) -> Toleration | None:
    values = object_of(_TOLERATION)(value, path, key)
    if values is None:
        return None
    operator = values.pop("operator", "Equal" if "key" in values else "Exists")
    tolerated = None if operator == "Exists" else values.pop("value", "")
    return Toleration(values.get("key", ""), tolerated, values.get("effect", ""))


def _request(value: Any, path: FieldPath, key: Any) -> RequestSpec | None:
    request: RequestSpec | None = object_of(_REQUEST, RequestSpec, all_valid=True)(value, path, key)
    if request is None:
        return None
    given = [field for field in ("gpu", "gpuFraction", "gpuMemoryMiB", "mig") if value.get(field) is not None]
    if len(given) > 1:
        raise InvalidValue(f"must have one of {' and '.join(given)}")
    if request.devices is not None and not {"gpuFraction", "gpuMemoryMiB"} & set(given):
        path.at(key, "devices").fault("only goes with gpuFraction or gpuMemoryMiB")
    return request


def _gpu_count(value: Any, path: FieldPath, key: Any) -> int:
    if type(value) is float and not value.is_integer():
        raise InvalidValue("must be a whole number; a part of a GPU is gpuFraction")
    count: int = whole(0, 1 << 20)(value, path, key)
    return count


def _fraction(value: Any, path: FieldPath, key: Any) -> int:
    fraction = milli(value, path, key)
    if not 0 < fraction <= 1000:
        raise InvalidValue("must be > 0 and <= 1")
    return fraction


def _steps(value: Any, path: FieldPath, key: Any) -> tuple[str, ...]:
    steps = list_of(choice(*STEPS))(value, path, key)
    for index, step in enumerate(steps):
        if step in steps[:index]:
            path.at(key, index).fault(f"{step} appears twice")
    return tuple(step for step in STEPS if step in steps)


def _grace(value: Any, path: FieldPath, key: Any) -> float:
    grace: float = number(None)(value, path, key)
    if grace < 0 and grace != -1:
        raise InvalidValue("must be >= 0, or -1 for never")
    return grace


def _policy(value: Any, path: FieldPath, key: Any) -> Policy:
    values = read_object(value, _POLICY, path.at(key), ())
    placement = values.pop("placement", None) or {}
    return Policy(**values, **placement)


def _topologies(value: Any, path: FieldPath, key: Any) -> dict[str, tuple[str, ...]]:
    if type(value) is list:
        return {DEFAULT_POOL: list_of(name)(value, path, key)}
    levels: dict[str, tuple[str, ...]] = map_of(list_of(name))(value, path, key)
    return levels


def _pools(value: Any, path: FieldPath, key: Any) -> dict[str, PoolQuotaSpec]:
    pools: dict[str, PoolQuotaSpec] = map_of(object_of(_POOL_QUOTA, PoolQuotaSpec))(value, path, key)
    if DEFAULT_POOL in pools:
        path.at(key, DEFAULT_POOL).fault("must not be here: the fields beside pools are those of pool default")
    return pools


def _now(value: Any, path: FieldPath, key: Any) -> float:
    return units.timestamp(value)


def _share(value: Any, path: FieldPath, key: Any) -> DeviceShare | None:
    share: DeviceShare | None = object_of(_SHARE, DeviceShare, ("index", "milli", "memoryMiB"), all_valid=True)(
        value, path, key
    )
    return share


def _mig_profile(value: Any, path: FieldPath, key: Any) -> str:
    if type(value) is not str or not _PROFILE.match(value):
        raise InvalidValue("must be a MIG profile such as 1g.5gb")
    return value


def _step(value: Any, path: FieldPath, key: Any) -> Step | None:
    inner = path.at(key)
    values = read_object(value, _STEP, inner, ())
    if type(value) is dict and len(value) != 1:
        raise InvalidValue("must have one of " + ", ".join(_STEP))
    return next((Step(action, operands) for action, operands in values.items()), None)


def _changes(fields: Fields) -> Reader:
    """Reads changes of existing objects: the name, and the fields that change."""
    return list_of(object_of(fields, dict, ("name",)))


_LABELS = map_of(text)
_AMOUNTS = {"gpu": Field("gpu", milli, True), "cpu": Field("cpu", milli, True), "memory": Field("memory", size, True)}
_NUMBERS = {resource: Field(resource, number()) for resource in ("gpu", "cpu", "memory")}
_GPU = {
    "index": Field("index", whole(0, 1024)),
    "memoryMiB": Field("memory_mib", whole()),
    "model": Field("model", text),
    "mig": Field("mig", _mig_profiles),
    "healthy": Field("healthy", flag),
    "profile": Field("profile", _mig_profile),
}
_EFFECTS = choice("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = {"key": Field("key", name), "value": Field("value", text), "effect": Field("effect", _EFFECTS)}
_TOLERATION = {
    "key": Field("key", text),
    "operator": Field("operator", choice("Equal", "Exists")),
    "value": Field("value", text),
    "effect": Field("effect", choice("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
}
_EXPRESSION = {
    "key": Field("key", text),
    "operator": Field("operator", choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    "values": Field("values", list_of(text)),
}
# A node must match every entry of the outer list; one of the alternatives in it; and all expressions of that one.
_AFFINITY = list_of(
    list_of(list_of(object_of(_EXPRESSION, NodeSelectorRequirement, ("key", "operator"), all_valid=True)))
)
_NODE = {
    "name": Field("name", name),
    "gpus": Field("gpus", _gpus),
    "gpuMemoryMiB": Field("gpu_memory_mib", whole()),
    "cpu": Field("cpu", milli),
    "memory": Field("memory", size),
    "pods": Field("pods", whole()),
    "labels": Field("labels", _LABELS),
    "taints": Field("taints", list_of(_taint)),
    "migStrategy": Field("mig_strategy", choice("none", "single", "mixed")),
    "mig": Field("mig", _mig_profiles),
    "ready": Field("ready", flag),
    "pool": Field("pool", name),
    "foreign": Field("foreign", _amounts),
}
_POOL_QUOTA = {
    "quota": Field("quota", _amounts),
    "limit": Field("limit", _amounts),
    "overQuota": Field("over_quota", flag),
    "overQuotaWeight": Field("weight", _weights),
    "priority": Field("priority", whole(None)),
}
_DEPARTMENT = {
    "name": Field("name", name),
    "parent": Field("parent", name),
    **_POOL_QUOTA,
    "created": Field("created", time_value),
    "reclaimMinRuntime": Field("reclaim_min_runtime", number()),
    "preemptMinRuntime": Field("preempt_min_runtime", number()),
    "usage": Field("usage", object_of(_NUMBERS)),
    "pools": Field("pools", _pools),
}
_PROJECT = {
    **_DEPARTMENT,
    "department": Field("department", name),
    "nodeTypes": Field("node_types", object_of({kind: Field(kind, list_of(text)) for kind in WORKLOAD_TYPES})),
}
_REQUEST = {
    "gpu": Field("gpu", _gpu_count),
    "gpuFraction": Field("gpu_fraction", _fraction),
    "gpuMemoryMiB": Field("gpu_memory_mib", whole(1)),
    "devices": Field("devices", whole(1, 1024)),
    "mig": Field("mig", _mig_profiles),
    "cpu": Field("cpu", milli),
    "memory": Field("memory", size),
}
_TOPOLOGY = {
    "name": Field("name", name),
    "required": Field("required", name),
    "preferred": Field("preferred", name),
}
_POD_AFFINITY = {"labels": Field("labels", _LABELS), "topologyKey": Field("topology_key", name)}
_pod_affinity = object_of(_POD_AFFINITY, PodAffinitySpec, ("labels", "topologyKey"))
_SUBGROUP = {
    "name": Field("name", name),
    "parent": Field("parent", name),
    "minAvailable": Field("min_available", whole()),
    "minSubgroups": Field("min_subgroups", whole()),
    "topology": Field("topology", object_of(_TOPOLOGY, TopologySpec)),
}
_SHARE = {
    "index": Field("index", whole(0, 1024)),
    "milli": Field("milli", whole()),
    "memoryMiB": Field("memory_mib", whole()),
}
_TASK = {
    "name": Field("name", name),
    "subgroup": Field("subgroup", name),
    "state": Field("state", choice(*TASK_STATES)),
    "node": Field("node", name),
    "devices": Field("devices", list_of(whole())),
    "shareGroup": Field("share_group", name),
    "shares": Field("shares", list_of(_share)),
    "request": Field("request", _request),
    "order": Field("order", whole(None)),
    "nodeSelector": Field("node_selector", _LABELS),
    "tolerations": Field("tolerations", list_of(_toleration)),
    "nodeTypes": Field("node_types", list_of(text)),
    "nodeAffinity": Field("node_affinity", _AFFINITY),
    "terminatingSince": Field("terminating_since", time_value),
}
_WORKLOAD = {
    "name": Field("name", name),
    "project": Field("project", name),
    "type": Field("type", choice(*WORKLOAD_TYPES)),
    "priority": Field("priority", whole(None)),
    "preemptible": Field("preemptible", flag),
    "created": Field("created", time_value),
    "minAvailable": Field("min_available", whole()),
    "started": Field("started", time_value),
    "saved": Field("saved", time_value),
    "stops": Field("stops", list_of(number(None))),
    "staleSince": Field("stale_since", time_value),
    "topology": Field("topology", object_of(_TOPOLOGY, TopologySpec)),
    "subgroups": Field("subgroups", list_of(object_of(_SUBGROUP, SubgroupSpec, ("name",)))),
    "minSubgroups": Field("min_subgroups", whole()),
    "preemptionDelay": Field("preemption_delay", number()),
    "staleGangGrace": Field("stale_grace", _grace),
    "podLabels": Field("pod_labels", _LABELS),
    "podAffinity": Field("pod_affinity", _pod_affinity),
    "podAntiAffinity": Field("pod_anti_affinity", _pod_affinity),
    "volumeClaims": Field("volume_claims", list_of(name)),
    "nodeSelector": Field("node_selector", _LABELS),
    "nodePools": Field("node_pools", list_of(name)),
    "nodeTypes": Field("node_types", list_of(text)),
    "nodeAffinity": Field("node_affinity", _AFFINITY),
    "tolerations": Field("tolerations", list_of(_toleration)),
    "hindrance": Field("hindrance", text),
    "request": Field("request", _request),
    "replicas": Field("replicas", whole(1, 1_000_000)),
    "tasks": Field("tasks", list_of(object_of(_TASK, TaskSpec, all_valid=True))),
}
_WORKLOADS = list_of(object_of(_WORKLOAD, WorkloadSpec, ("name", "project")))
_NODE_CHOICE = choice("binpack", "spread", "least-fragments")
_PLACEMENT = {
    "gpu": Field("gpu", _NODE_CHOICE),
    "cpu": Field("cpu", _NODE_CHOICE),
    "device": Field("device", choice("binpack", "spread")),
}
_POLICY = {
    "steps": Field("steps", _steps),
    "spare": Field("spare", choice("quota", "weight")),
    "placement": Field("placement", object_of(_PLACEMENT)),
    "staleGangGrace": Field("stale_grace", _grace),
    "terminatingGrace": Field("terminating_grace", number(), True),
    "usageWeight": Field("usage_weight", number()),
    "victims": Field("victims", choice("least-disruption", "newest")),
    "disruptionBound": Field("disruption_bound", number(), True),
    "shareUnit": Field("share_unit", choice("milli", "whole")),
    "saturationMultiplier": Field("saturation_multiplier", number(1)),
    "departmentFirst": Field("department_first", flag),
    "holdAfter": Field("hold_after", number(), True),
    "restartsPerHour": Field("restarts_per_hour", whole(), True),
}
_STEP = {
    "submit": Field("submit", _WORKLOADS),
    "delete": Field("delete", list_of(name)),
    "finish": Field("finish", list_of(name)),
    "advance": Field("advance", number()),
    "nodes": Field("nodes", _changes(_NODE)),
    "projects": Field("projects", _changes(_PROJECT)),
    "departments": Field("departments", _changes(_DEPARTMENT)),
}
_SCENARIO = {
    "name": Field("name", text),
    "now": Field("now", _now),
    "rounds": Field("rounds", whole(1)),
    "policy": Field("policy", _policy),
    "policies": Field("policies", map_of(_policy)),
    "nodes": Field("nodes", list_of(object_of(_NODE, NodeSpec, ("name",)))),
    "topology": Field("topology", _topologies),
    "volumeClaims": Field("volume_claims", list_of(name)),
    "departments": Field("departments", list_of(object_of(_DEPARTMENT, QueueSpec, ("name",)))),
    "projects": Field("projects", list_of(object_of(_PROJECT, QueueSpec, ("name",)))),
    "workloads": Field("workloads", _WORKLOADS),
    "steps": Field("steps", list_of(_step)),
}
