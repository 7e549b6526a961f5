"""Only nodes that would have room if they were empty."""

from __future__ import annotations

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.reasons.format import count, memory_text


def large_enough(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    request = task.request
    for profile, wanted in request.mig:
        there = sum(device.profile == profile and device.healthy for device in node.devices)
        if there < wanted:
            return Refusal("too-large", Verdict.NEVER, f"with {there} of {profile}")
    if request.devices and not request.mig:
        there = sum(_could_hold(request.memory_mib, d.memory_mib) for d in node.devices if d.healthy and not d.profile)
        if there < request.devices:
            return Refusal("too-large", Verdict.NEVER, _has(there, request.memory_mib))
    if request.cpu > node.cpu:
        return Refusal("too-large", Verdict.NEVER, f"with {node.cpu / 1000:g} cores in all")
    if request.memory > node.memory:
        return Refusal("too-large", Verdict.NEVER, f"with {memory_text(node.memory)} of memory in all")
    return None


def _could_hold(wanted_mib: int, memory_mib: int) -> bool:
    return wanted_mib <= memory_mib


def _has(there: int, memory_mib: int) -> str:
    gpus = count(there, "GPU") if there else "no GPU"
    return f"with {gpus} of {memory_mib} MiB or more" if memory_mib else f"with {gpus}{' in all' if there else ''}"
