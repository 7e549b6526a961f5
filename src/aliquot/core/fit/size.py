"""Only nodes that would have room if they were empty."""

from __future__ import annotations

from aliquot.core.fit.cluster import Cluster
from aliquot.core.model import Node, Task
from aliquot.core.plan import Refusal, Verdict


def large_enough(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    request = task.request
    for profile, count in request.mig:
        there = sum(device.profile == profile and device.healthy for device in node.devices)
        if there < count:
            return Refusal("too-large", Verdict.NEVER, f"has {there} of {profile}")
    if request.devices and not request.mig:
        there = sum(_could_hold(request.memory_mib, d.memory_mib) for d in node.devices if d.healthy and not d.profile)
        if there < request.devices:
            return Refusal("too-large", Verdict.NEVER, _has(there, request.memory_mib))
    if request.cpu > node.cpu:
        return Refusal("too-large", Verdict.NEVER, f"has {node.cpu / 1000:g} cores in all")
    if request.memory > node.memory:
        return Refusal("too-large", Verdict.NEVER, f"has {node.memory >> 20} MiB of memory in all")
    return None


def _could_hold(wanted_mib: int, memory_mib: int) -> bool:
    return wanted_mib <= memory_mib


def _has(count: int, memory_mib: int) -> str:
    gpus = f"{count} {'GPU' if count == 1 else 'GPUs'}"
    return f"has {gpus} of {memory_mib} MiB or more" if memory_mib else f"has {gpus}"
