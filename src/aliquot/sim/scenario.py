"""The scenario file, field by field: how each is read, and into which record. Fields are added, never renamed.

    scenarios   data of a file -> scenarios, or `Invalid` with every fault and its path

Whether the names in a file belong together is checked in references.py.
"""

from __future__ import annotations

import re
from typing import Any

from aliquot import units
from aliquot.errors import Invalid
from aliquot.planner.model import DEFAULT_POOL, STEPS, DeviceShare, NodeSelectorRequirement, Policy, Taint, Toleration
from aliquot.sim.field_readers import (
    Bad,
    Parse,
    Place,
    Rule,
    Table,
    choice,
    flag,
    listed,
    mapped,
    milli,
    moment,
    name,
    nested,
    number,
    record,
    size,
    text,
    whole,
)
from aliquot.sim.records import (
    STATES,
    TYPES,
    Card,
    ClosenessSpec,
    GroupSpec,
    NeighboursSpec,
    NodeSpec,
    QueueSpec,
    RequestSpec,
    Scenario,
    Step,
    TaskSpec,
    TermsSpec,
    WorkloadSpec,
)
from aliquot.sim.references import check

_PROFILE = re.compile(r"^[1-9][0-9]?g\.[0-9]{1,4}gb(\+[a-z.]+)?$")


def scenarios(data: Any) -> list[Scenario]:
    """The scenarios of a file, which holds one or a list of them."""
    top = Place()
    pairs = [(top.at(index), each) for index, each in enumerate(data)] if type(data) is list else [(top, data)]
    found = []
    for place, each in pairs:
        scenario = Scenario(**record(each, _SCENARIO, place, ()))
        check(scenario, each if type(each) is dict else {}, place)
        found.append(scenario)
    if top.faults:
        raise Invalid.because("not a valid scenario", top.faults)
    return found


def _amounts(value: Any, place: Place, key: Any) -> dict[str, int | None]:
    return dict(record(value, _AMOUNTS, place.at(key), ()))


def _weights(value: Any, place: Place, key: Any) -> dict[str, float]:
    if type(value) in (int, float):
        each = number()(value, place, key)
        return {"gpu": each, "cpu": each, "memory": each}
    return dict(record(value, _NUMBERS, place.at(key), ()))


def _profiles(value: Any, place: Place, key: Any) -> dict[str, int]:
    counts: dict[str, int] = mapped(whole(0, 100_000))(value, place, key)
    for profile in counts:
        if not _PROFILE.match(profile):
            place.at(key, profile).fault("is not a MIG profile such as 1g.5gb")
    return counts


def _gpus(value: Any, place: Place, key: Any) -> int | tuple[Card, ...]:
    if type(value) is not list:
        count: int = whole(0, 1024)(value, place, key)
        return count
    cards: tuple[Card | None, ...] = listed(nested(_CARD, Card, ("index",)))(value, place, key)
    indices = [card.index for card in cards if card]
    for position, index in enumerate(indices):
        if index in indices[:position]:
            place.at(key, position, "index").fault(f"GPU {index} stands twice")
    return tuple(card for card in cards if card)


def _taint(value: Any, place: Place, key: Any) -> Taint | None:
    found: Taint | None = nested(_TAINT, Taint, ("key",))(value, place, key)
    return found


def _toleration(value: Any, place: Place, key: Any) -> Toleration | None:
    values = nested(_TOLERATION)(value, place, key)
    if values is None:
        return None
    operator = values.pop("operator", "Equal" if "key" in values else "Exists")
    wanted = None if operator == "Exists" else values.pop("value", "")
    return Toleration(values.get("key", ""), wanted, values.get("effect", ""))


def _request(value: Any, place: Place, key: Any) -> RequestSpec | None:
    found: RequestSpec | None = nested(_REQUEST, RequestSpec, sound=True)(value, place, key)
    if found is None:
        return None
    given = [word for word in ("gpu", "gpuFraction", "gpuMemoryMiB", "mig") if value.get(word) is not None]
    if len(given) > 1:
        raise Bad(f"must have one of {' and '.join(given)}")
    if found.devices is not None and not {"gpuFraction", "gpuMemoryMiB"} & set(given):
        place.at(key, "devices").fault("only goes with gpuFraction or gpuMemoryMiB")
    return found


def _gpu_count(value: Any, place: Place, key: Any) -> int:
    if type(value) is float and not value.is_integer():
        raise Bad("must be a whole number; a part of a GPU is gpuFraction")
    count: int = whole(0, 1 << 20)(value, place, key)
    return count


def _fraction(value: Any, place: Place, key: Any) -> int:
    found = milli(value, place, key)
    if not 0 < found <= 1000:
        raise Bad("must be > 0 and <= 1")
    return found


def _steps(value: Any, place: Place, key: Any) -> tuple[str, ...]:
    words = listed(choice(*STEPS))(value, place, key)
    for index, word in enumerate(words):
        if word in words[:index]:
            place.at(key, index).fault(f"{word} stands twice")
    return tuple(step for step in STEPS if step in words)


def _grace(value: Any, place: Place, key: Any) -> float:
    found: float = number(None)(value, place, key)
    if found < 0 and found != -1:
        raise Bad("must be >= 0, or -1 for never")
    return found


def _policy(value: Any, place: Place, key: Any) -> Policy:
    values = record(value, _POLICY, place.at(key), ())
    placement = values.pop("placement", None) or {}
    return Policy(**values, **placement)


def _levels(value: Any, place: Place, key: Any) -> dict[str, tuple[str, ...]]:
    if type(value) is list:
        return {DEFAULT_POOL: listed(name)(value, place, key)}
    found: dict[str, tuple[str, ...]] = mapped(listed(name))(value, place, key)
    return found


def _pools(value: Any, place: Place, key: Any) -> dict[str, TermsSpec]:
    found: dict[str, TermsSpec] = mapped(nested(_TERMS, TermsSpec))(value, place, key)
    if DEFAULT_POOL in found:
        place.at(key, DEFAULT_POOL).fault("must not be here: the fields beside pools are those of pool default")
    return found


def _now(value: Any, place: Place, key: Any) -> float:
    return units.timestamp(value)


def _share(value: Any, place: Place, key: Any) -> DeviceShare | None:
    found: DeviceShare | None = nested(_SHARE, DeviceShare, ("index", "milli", "memoryMiB"), sound=True)(
        value, place, key
    )
    return found


def _slice(value: Any, place: Place, key: Any) -> str:
    if type(value) is not str or not _PROFILE.match(value):
        raise Bad("must be a MIG profile such as 1g.5gb")
    return value


def _step(value: Any, place: Place, key: Any) -> Step | None:
    inner = place.at(key)
    values = record(value, _STEP, inner, ())
    if type(value) is dict and len(value) != 1:
        raise Bad("must have one of " + ", ".join(_STEP))
    return next((Step(word, operands) for word, operands in values.items()), None)


def _changes(table: Table) -> Parse:
    """Some fields of things that are there, by name."""
    return listed(nested(table, dict, ("name",)))


_LABELS = mapped(text)
_AMOUNTS = {"gpu": Rule("gpu", milli, True), "cpu": Rule("cpu", milli, True), "memory": Rule("memory", size, True)}
_NUMBERS = {word: Rule(word, number()) for word in ("gpu", "cpu", "memory")}
_CARD = {
    "index": Rule("index", whole(0, 1024)),
    "memoryMiB": Rule("memory_mib", whole()),
    "model": Rule("model", text),
    "mig": Rule("mig", _profiles),
    "healthy": Rule("healthy", flag),
    "profile": Rule("profile", _slice),
}
_EFFECTS = choice("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = {"key": Rule("key", name), "value": Rule("value", text), "effect": Rule("effect", _EFFECTS)}
_TOLERATION = {
    "key": Rule("key", text),
    "operator": Rule("operator", choice("Equal", "Exists")),
    "value": Rule("value", text),
    "effect": Rule("effect", choice("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
}
_EXPRESSION = {
    "key": Rule("key", text),
    "operator": Rule("operator", choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    "values": Rule("values", listed(text)),
}
# All of a list; of each any alternative; of that one all expressions.
_AFFINITY = listed(listed(listed(nested(_EXPRESSION, NodeSelectorRequirement, ("key", "operator"), sound=True))))
_NODE = {
    "name": Rule("name", name),
    "gpus": Rule("gpus", _gpus),
    "gpuMemoryMiB": Rule("gpu_memory_mib", whole()),
    "cpu": Rule("cpu", milli),
    "memory": Rule("memory", size),
    "pods": Rule("pods", whole()),
    "labels": Rule("labels", _LABELS),
    "taints": Rule("taints", listed(_taint)),
    "migStrategy": Rule("mig_strategy", choice("none", "single", "mixed")),
    "mig": Rule("mig", _profiles),
    "ready": Rule("ready", flag),
    "pool": Rule("pool", name),
    "foreign": Rule("foreign", _amounts),
}
_TERMS = {
    "quota": Rule("quota", _amounts),
    "limit": Rule("limit", _amounts),
    "overQuota": Rule("over_quota", flag),
    "overQuotaWeight": Rule("weight", _weights),
    "priority": Rule("priority", whole(None)),
}
_DEPARTMENT = {
    "name": Rule("name", name),
    "parent": Rule("parent", name),
    **_TERMS,
    "created": Rule("created", moment),
    "reclaimMinRuntime": Rule("reclaim_min_runtime", number()),
    "preemptMinRuntime": Rule("preempt_min_runtime", number()),
    "usage": Rule("usage", nested(_NUMBERS)),
    "pools": Rule("pools", _pools),
}
_PROJECT = {
    **_DEPARTMENT,
    "department": Rule("department", name),
    "nodeTypes": Rule("node_types", nested({word: Rule(word, listed(text)) for word in TYPES})),
}
_REQUEST = {
    "gpu": Rule("gpu", _gpu_count),
    "gpuFraction": Rule("gpu_fraction", _fraction),
    "gpuMemoryMiB": Rule("gpu_memory_mib", whole(1)),
    "devices": Rule("devices", whole(1, 1024)),
    "mig": Rule("mig", _profiles),
    "cpu": Rule("cpu", milli),
    "memory": Rule("memory", size),
}
_CLOSENESS = {
    "name": Rule("name", name),
    "required": Rule("required", name),
    "preferred": Rule("preferred", name),
}
_NEIGHBOURS = {"labels": Rule("labels", _LABELS), "topologyKey": Rule("topology_key", name)}
_neighbours = nested(_NEIGHBOURS, NeighboursSpec, ("labels", "topologyKey"))
_GROUP = {
    "name": Rule("name", name),
    "parent": Rule("parent", name),
    "minAvailable": Rule("min_available", whole()),
    "minSubgroups": Rule("min_subgroups", whole()),
    "topology": Rule("topology", nested(_CLOSENESS, ClosenessSpec)),
}
_SHARE = {
    "index": Rule("index", whole(0, 1024)),
    "milli": Rule("milli", whole()),
    "memoryMiB": Rule("memory_mib", whole()),
}
_TASK = {
    "name": Rule("name", name),
    "subgroup": Rule("subgroup", name),
    "state": Rule("state", choice(*STATES)),
    "node": Rule("node", name),
    "devices": Rule("devices", listed(whole())),
    "shareGroup": Rule("share_group", name),
    "shares": Rule("shares", listed(_share)),
    "request": Rule("request", _request),
    "order": Rule("order", whole(None)),
    "nodeSelector": Rule("node_selector", _LABELS),
    "tolerations": Rule("tolerations", listed(_toleration)),
    "nodeTypes": Rule("node_types", listed(text)),
    "nodeAffinity": Rule("node_affinity", _AFFINITY),
    "terminatingSince": Rule("terminating_since", moment),
}
_WORKLOAD = {
    "name": Rule("name", name),
    "project": Rule("project", name),
    "type": Rule("type", choice(*TYPES)),
    "priority": Rule("priority", whole(None)),
    "preemptible": Rule("preemptible", flag),
    "created": Rule("created", moment),
    "minAvailable": Rule("min_available", whole()),
    "started": Rule("started", moment),
    "saved": Rule("saved", moment),
    "stops": Rule("stops", listed(number(None))),
    "staleSince": Rule("stale_since", moment),
    "topology": Rule("topology", nested(_CLOSENESS, ClosenessSpec)),
    "subgroups": Rule("subgroups", listed(nested(_GROUP, GroupSpec, ("name",)))),
    "minSubgroups": Rule("min_subgroups", whole()),
    "preemptionDelay": Rule("preemption_delay", number()),
    "staleGangGrace": Rule("stale_grace", _grace),
    "podLabels": Rule("pod_labels", _LABELS),
    "podAffinity": Rule("pod_affinity", _neighbours),
    "podAntiAffinity": Rule("pod_anti_affinity", _neighbours),
    "volumeClaims": Rule("volume_claims", listed(name)),
    "nodeSelector": Rule("node_selector", _LABELS),
    "nodePools": Rule("node_pools", listed(name)),
    "nodeTypes": Rule("node_types", listed(text)),
    "nodeAffinity": Rule("node_affinity", _AFFINITY),
    "tolerations": Rule("tolerations", listed(_toleration)),
    "hindrance": Rule("hindrance", text),
    "request": Rule("request", _request),
    "replicas": Rule("replicas", whole(1, 1_000_000)),
    "tasks": Rule("tasks", listed(nested(_TASK, TaskSpec, sound=True))),
}
_WORKLOADS = listed(nested(_WORKLOAD, WorkloadSpec, ("name", "project")))
_DEVICE = choice("binpack", "spread")
_NODES = choice("binpack", "spread", "least-fragments")
_POLICY = {
    "steps": Rule("steps", _steps),
    "spare": Rule("spare", choice("quota", "weight")),
    "placement": Rule(
        "placement", nested({"gpu": Rule("gpu", _NODES), "cpu": Rule("cpu", _NODES), "device": Rule("device", _DEVICE)})
    ),
    "staleGangGrace": Rule("stale_grace", _grace),
    "terminatingGrace": Rule("terminating_grace", number(), True),
    "usageWeight": Rule("usage_weight", number()),
    "victims": Rule("victims", choice("least-disruption", "newest")),
    "disruptionBound": Rule("disruption_bound", number(), True),
    "shareUnit": Rule("share_unit", choice("milli", "whole")),
    "saturationMultiplier": Rule("saturation_multiplier", number(1)),
    "departmentFirst": Rule("department_first", flag),
    "holdAfter": Rule("hold_after", number(), True),
    "restartsPerHour": Rule("restarts_per_hour", whole(), True),
}
_STEP = {
    "submit": Rule("submit", _WORKLOADS),
    "delete": Rule("delete", listed(name)),
    "finish": Rule("finish", listed(name)),
    "advance": Rule("advance", number()),
    "nodes": Rule("nodes", _changes(_NODE)),
    "projects": Rule("projects", _changes(_PROJECT)),
    "departments": Rule("departments", _changes(_DEPARTMENT)),
}
_SCENARIO = {
    "name": Rule("name", text),
    "now": Rule("now", _now),
    "rounds": Rule("rounds", whole(1)),
    "policy": Rule("policy", _policy),
    "policies": Rule("policies", mapped(_policy)),
    "nodes": Rule("nodes", listed(nested(_NODE, NodeSpec, ("name",)))),
    "topology": Rule("topology", _levels),
    "volumeClaims": Rule("volume_claims", listed(name)),
    "departments": Rule("departments", listed(nested(_DEPARTMENT, QueueSpec, ("name",)))),
    "projects": Rule("projects", listed(nested(_PROJECT, QueueSpec, ("name",)))),
    "workloads": Rule("workloads", _WORKLOADS),
    "steps": Rule("steps", listed(_step)),
}
