"""The result of a simulation: what a plan does in a round, and the state of the cluster after it.

Results are plain data in the order of the file, so that the same file gives the same bytes. `to_json` writes one line
for each workload and task, so that a diff of two results lists the workloads and tasks that differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aliquot.planner.model import DEFAULT_POOL, RESOURCES, Device, DeviceShare, Request, Task, TaskState
from aliquot.planner.plan import Plan, Refusal
from aliquot.sim.cluster import SimulatedCluster, TaskOutcome, eviction_reason, task_outcomes
from aliquot.units import whole_units

Report = dict[str, Any]

# The result words of tasks that the plan does not touch.
_STATE_WORDS = {state: state.value for state in TaskState} | {
    TaskState.RELEASING: "terminating",
    TaskState.GATED: "pending",
}
# A workload has the first of these states that one of its tasks has.
_STATE_ORDER = ("running", "bound", "moved", "reserved", "evicted", "terminating", "pending", "failed", "succeeded")
_ALLOCATED = ("running", "bound")
_NO_SHARES: tuple[DeviceShare, ...] = ()
_GATED = {"step": "allocate", "code": "gated", "text": "is gated: not to be scheduled yet", "missing": {}}
_REQUEUED = {"step": "allocate", "code": "evicted", "text": "was terminating until now", "missing": {}}
_NOT_CONSIDERED = {
    "step": "allocate",
    "code": "not-considered",
    "text": "no step of this policy looked at it",
    "missing": {},
}


def round_result(cluster: SimulatedCluster, plan: Plan) -> Report:
    """One round: the cluster that was planned for, and what the plan does with each task."""
    return _report(cluster, plan, task_outcomes(cluster.jobs, plan), {})


def cluster_state(cluster: SimulatedCluster, plan: Plan) -> Report:
    """The cluster after the plan was applied."""
    refusals = {
        each.task: {"step": each.rule, "code": "evicted", "text": eviction_reason(cluster.jobs, each), "missing": {}}
        for each in plan.evictions
        if each.to is None
    }
    return _report(cluster, plan, {}, refusals | dict.fromkeys(cluster.requeued, _REQUEUED))


def _report(
    cluster: SimulatedCluster, plan: Plan, outcomes: Mapping[str, TaskOutcome], evicted: Mapping[str, dict[str, Any]]
) -> Report:
    refusals = {job: list(map(_refusal, reasons)) for job, reasons in plan.refusals.items() if job in cluster.jobs}
    devices = {node.name: {device.index: device for device in node.devices} for node in cluster.nodes.values()}
    workloads: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    for name, job in cluster.jobs.items():
        job_refusals = refusals.get(name)
        states, milli = set(), 0
        for task in job.tasks:
            outcome = outcomes.get(task.name)
            report = _task(task, outcome, job_refusals, evicted.get(task.name))
            tasks[task.name] = report
            states.add(report["state"])
            if report["state"] in _ALLOCATED or (report["state"] == "moved" and "reserved" not in report):
                shares = outcome.shares if outcome else task.shares
                milli += _allocated_milli(task.request, shares, devices.get(report["node"], {}))
        state = next((word for word in _STATE_ORDER if word in states), "pending")
        workloads[name] = {"state": state, "allocated": {"gpu": whole_units(milli)}}
        if job_refusals is None and "pending" in states:
            refusals[name] = _distinct(tasks[task.name]["refusal"] for task in job.tasks)
    return {
        "fairShare": _fair_shares(cluster, plan),
        "workloads": workloads,
        "tasks": tasks,
        "refusals": {name: refusals[name] for name in cluster.jobs if name in refusals},
    }


def _task(
    task: Task, outcome: TaskOutcome | None, refusals: list[dict[str, Any]] | None, evicted: dict[str, Any] | None
) -> dict[str, Any]:
    leaving = task.state is TaskState.EVICTED and outcome is None
    state = outcome.state if outcome else _STATE_WORDS[task.state]
    node, shares = (
        (outcome.node, outcome.shares) if outcome else ("", _NO_SHARES) if leaving else (task.node, task.shares)
    )
    report: dict[str, Any] = {
        "state": state,
        "node": node or None,
        "devices": _devices(shares),
        "because": (outcome.because if outcome else evicted["text"] if evicted and evicted is not _REQUEUED else None)
        or None,
        "refusal": _task_refusal(task, refusals, evicted) if state == "pending" else None,
    }
    if state in ("evicted", "moved"):
        report["from"] = task.node
        report["fromDevices"] = _devices(task.shares)
    if outcome and outcome.reserved:
        report["reserved"] = True
    return report


def _task_refusal(task: Task, refusals: list[dict[str, Any]] | None, evicted: dict[str, Any] | None) -> dict[str, Any]:
    if evicted is not None:
        return evicted
    if refusals:
        return refusals[0]
    return _GATED if task.state is TaskState.GATED else _NOT_CONSIDERED


def _distinct(reasons: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The reasons of a job's tasks, each once."""
    return list({reason["text"]: reason for reason in reasons if reason}.values())


def _devices(shares: Iterable[DeviceShare]) -> list[dict[str, int]]:
    return [{"index": share.index, "milli": share.milli, "memoryMiB": share.memory_mib} for share in shares]


def _allocated_milli(request: Request, shares: Iterable[DeviceShare], devices: Mapping[int, Device]) -> int:
    """The milli-GPU that a task counts for. A memory request is converted with the memory of its devices."""
    if not request.memory_mib:
        return request.quota(0)
    per_device = Request(devices=1, memory_mib=request.memory_mib)
    return sum(per_device.quota(devices[share.index].memory_mib if share.index in devices else 0) for share in shares)


def _refusal(reason: Refusal) -> dict[str, Any]:
    report: dict[str, Any] = {
        "step": reason.step,
        "code": reason.code,
        "text": reason.text,
        "missing": _amounts(reason.missing),
        "verdict": reason.verdict.value,
    }
    optional = {"queue": reason.queue, "resource": reason.resource, "node": reason.node, "nodes": reason.nodes}
    report |= {field: value for field, value in optional.items() if value}
    if reason.holders:
        report["holders"] = list(reason.holders)
    return report


def _amounts(amount: tuple[int, int, int]) -> dict[str, int | float]:
    values = (whole_units(amount[0]), whole_units(amount[1]), amount[2])
    return {resource: value for resource, value in zip(RESOURCES, values, strict=True) if value}


def _fair_shares(cluster: SimulatedCluster, plan: Plan) -> dict[str, Any]:
    """GPUs by queue: those of pool default, and under `pools` those of the other pools."""
    default_pool = plan.fair_shares.get(DEFAULT_POOL, {})
    report: dict[str, Any] = {name: {"gpu": _gpus(default_pool, name)} for name in cluster.queues}
    for pool in sorted(set(plan.fair_shares) - {DEFAULT_POOL}):
        for name in cluster.queues:
            if name in plan.fair_shares[pool]:
                report[name].setdefault("pools", {})[pool] = {"gpu": _gpus(plan.fair_shares[pool], name)}
    return report


def _gpus(shares: Mapping[str, tuple[int, int, int]], name: str) -> float:
    return shares[name][0] / 1000 if name in shares else 0.0


def to_json(results: Any) -> str:
    """As JSON: one line for each workload, task and queue."""
    if isinstance(results, list):
        return "[\n" + ",\n".join(_result(result) for result in results) + "\n]"
    return _result(results)


def _result(result: Mapping[str, Any]) -> str:
    parts = []
    for key, value in result.items():
        if key in ("rounds", "steps"):
            text = "[\n" + ",\n".join("  " + _section(report, "   ") for report in value) + "\n ]"
        elif key == "final":
            text = _section(value, "  ")
        else:
            text = _compact(value)
        parts.append(f" {_compact(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _section(report: Mapping[str, Any], indent: str) -> str:
    parts = []
    for key, value in report.items():
        text = _compact(value)
        if isinstance(value, dict) and key != "timing" and value:
            lines = ",\n".join(f"{indent} {_compact(name)}: {_compact(entry)}" for name, entry in value.items())
            text = "{\n" + lines + "}"
        parts.append(f"{_compact(key)}: {text}")
    return "{" + f",\n{indent}".join(parts) + "}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
