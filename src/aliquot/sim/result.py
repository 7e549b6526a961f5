"""What a result says: the picture of a round, and of the world after it.

A picture is plain data in the order of the file, so that the same file gives the same bytes. `text` writes it with one
line for each workload and task: a diff of two results then reads as a list of what became different.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aliquot.planner.model import DEFAULT_POOL, RESOURCES, Device, DeviceShare, Request, Task, TaskState
from aliquot.planner.plan import Plan, Refusal
from aliquot.sim.world import Fate, World, because, fates
from aliquot.units import whole_units

Picture = dict[str, Any]

# What a task is called whose fate the plan leaves alone.
_WORDS = {state: state.value for state in TaskState} | {TaskState.RELEASING: "terminating", TaskState.GATED: "pending"}
# A workload is what the foremost of its tasks is.
_RANK = ("running", "bound", "moved", "reserved", "evicted", "terminating", "pending", "failed", "succeeded")
_HAS = ("running", "bound")
_NOWHERE: tuple[DeviceShare, ...] = ()
_GATED = {"step": "allocate", "code": "gated", "text": "is gated: not to be scheduled yet", "missing": {}}
_RETURNED = {"step": "allocate", "code": "evicted", "text": "was on its way out until now", "missing": {}}
_UNSEEN = {"step": "allocate", "code": "not-considered", "text": "no step of this policy looked at it", "missing": {}}


def before(world: World, decided: Plan) -> Picture:
    """A round: the world as it was planned for, with what the plan does to it."""
    return _picture(world, decided, fates(world.jobs, decided), {})


def after(world: World, decided: Plan) -> Picture:
    """The world once the plan was applied."""
    stopped = {one.task: one for one in decided.evictions if one.to is None}
    told = {
        task: {"step": one.rule, "code": "evicted", "text": because(world.jobs, one), "missing": {}}
        for task, one in stopped.items()
    }
    return _picture(world, decided, {}, told | dict.fromkeys(world.returned, _RETURNED))


def _picture(
    world: World, decided: Plan, fate_of: Mapping[str, Fate], stopped: Mapping[str, dict[str, Any]]
) -> Picture:
    refusals = {job: list(map(_refusal, reasons)) for job, reasons in decided.refusals.items() if job in world.jobs}
    sizes = {node.name: {device.index: device for device in node.devices} for node in world.nodes.values()}
    workloads: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    for name, job in world.jobs.items():
        own = refusals.get(name)
        words, milli = set(), 0
        for task in job.tasks:
            fate = fate_of.get(task.name)
            shown = _task(task, fate, own, stopped.get(task.name))
            tasks[task.name] = shown
            words.add(shown["state"])
            if shown["state"] in _HAS or (shown["state"] == "moved" and "reserved" not in shown):
                milli += _counted(task.request, fate.shares if fate else task.shares, sizes.get(shown["node"], {}))
        state = next((word for word in _RANK if word in words), "pending")
        workloads[name] = {"state": state, "allocated": {"gpu": whole_units(milli)}}
        if own is None and "pending" in words:
            refusals[name] = _once(tasks[task.name]["refusal"] for task in job.tasks)
    return {
        "fairShare": _fair_shares(world, decided),
        "workloads": workloads,
        "tasks": tasks,
        "refusals": {name: refusals[name] for name in world.jobs if name in refusals},
    }


def _task(
    task: Task, fate: Fate | None, refusals: list[dict[str, Any]] | None, stopped: dict[str, Any] | None
) -> dict[str, Any]:
    going = task.state is TaskState.EVICTED and fate is None
    state = fate.state if fate else _WORDS[task.state]
    node, shares = (fate.node, fate.shares) if fate else ("", _NOWHERE) if going else (task.node, task.shares)
    shown: dict[str, Any] = {
        "state": state,
        "node": node or None,
        "devices": _devices(shares),
        "because": (fate.because if fate else stopped["text"] if stopped and stopped is not _RETURNED else None)
        or None,
        "refusal": _why(task, refusals, stopped) if state == "pending" else None,
    }
    if state in ("evicted", "moved"):
        shown["from"] = task.node
        shown["fromDevices"] = _devices(task.shares)
    if fate and fate.reserved:
        shown["reserved"] = True
    return shown


def _why(task: Task, refusals: list[dict[str, Any]] | None, stopped: dict[str, Any] | None) -> dict[str, Any]:
    if stopped is not None:
        return stopped
    if refusals:
        return refusals[0]
    return _GATED if task.state is TaskState.GATED else _UNSEEN


def _once(reasons: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Reasons that only its tasks know, each once."""
    return list({reason["text"]: reason for reason in reasons if reason}.values())


def _devices(shares: Iterable[DeviceShare]) -> list[dict[str, int]]:
    return [{"index": one.index, "milli": one.milli, "memoryMiB": one.memory_mib} for one in shares]


def _counted(request: Request, shares: Iterable[DeviceShare], devices: Mapping[int, Device]) -> int:
    """Milli-GPU that a task counts for: by the size of the devices that it got."""
    if not request.memory_mib:
        return request.quota(0)
    one = Request(devices=1, memory_mib=request.memory_mib)
    return sum(one.quota(devices[share.index].memory_mib if share.index in devices else 0) for share in shares)


def _refusal(reason: Refusal) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "step": reason.step,
        "code": reason.code,
        "text": reason.text,
        "missing": _amounts(reason.missing),
        "verdict": reason.verdict.value,
    }
    more = {"queue": reason.queue, "resource": reason.resource, "node": reason.node, "nodes": reason.nodes}
    shown |= {word: value for word, value in more.items() if value}
    if reason.holders:
        shown["holders"] = list(reason.holders)
    return shown


def _amounts(amount: tuple[int, int, int]) -> dict[str, int | float]:
    shown = (whole_units(amount[0]), whole_units(amount[1]), amount[2])
    return {word: value for word, value in zip(RESOURCES, shown, strict=True) if value}


def _fair_shares(world: World, decided: Plan) -> dict[str, Any]:
    """GPUs by queue, of pool default; other pools stand under `pools`."""
    own = decided.fair_shares.get(DEFAULT_POOL, {})
    shown: dict[str, Any] = {name: {"gpu": _gpus(own, name)} for name in world.queues}
    for pool in sorted(set(decided.fair_shares) - {DEFAULT_POOL}):
        for name in world.queues:
            if name in decided.fair_shares[pool]:
                shown[name].setdefault("pools", {})[pool] = {"gpu": _gpus(decided.fair_shares[pool], name)}
    return shown


def _gpus(shares: Mapping[str, tuple[int, int, int]], name: str) -> float:
    return shares[name][0] / 1000 if name in shares else 0.0


def text(results: Any) -> str:
    """As JSON: one line for each workload, task and queue."""
    if isinstance(results, list):
        return "[\n" + ",\n".join(_result(one) for one in results) + "\n]"
    return _result(results)


def _result(result: Mapping[str, Any]) -> str:
    parts = []
    for key, value in result.items():
        if key in ("rounds", "steps"):
            shown = "[\n" + ",\n".join("  " + _section(one, "   ") for one in value) + "\n ]"
        elif key == "final":
            shown = _section(value, "  ")
        else:
            shown = _compact(value)
        parts.append(f" {_compact(key)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}"


def _section(picture: Mapping[str, Any], indent: str) -> str:
    parts = []
    for key, value in picture.items():
        shown = _compact(value)
        if isinstance(value, dict) and key != "timing" and value:
            rows = ",\n".join(f"{indent} {_compact(name)}: {_compact(each)}" for name, each in value.items())
            shown = "{\n" + rows + "}"
        parts.append(f"{_compact(key)}: {shown}")
    return "{" + f",\n{indent}".join(parts) + "}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
