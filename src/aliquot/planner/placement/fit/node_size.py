"""Nodes on which the task would fit if they were empty."""

from __future__ import annotations

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.reasons.format import count, memory_text


def large_enough(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    request = task.request
    for profile, wanted in request.mig:
        slices = sum(device.profile == profile and device.healthy for device in node.devices)
        if slices < wanted:
            return Refusal("too-large", Verdict.NEVER, f"with {slices} of {profile}")
    if request.devices and not request.mig:
        devices = [device for device in node.devices if device.healthy and not device.profile]
        large = sum(device.memory_mib >= request.memory_mib for device in devices)
        if large < request.devices:
            return Refusal("too-large", Verdict.NEVER, _devices_text(large, request.memory_mib))
    if request.cpu > node.cpu:
        return Refusal("too-large", Verdict.NEVER, f"with {node.cpu / 1000:g} cores in all")
    if request.memory > node.memory:
        return Refusal("too-large", Verdict.NEVER, f"with {memory_text(node.memory)} of memory in all")
    return None


def _devices_text(devices: int, memory_mib: int) -> str:
    gpus = count(devices, "GPU") if devices else "no GPU"
    return f"with {gpus} of {memory_mib} MiB or more" if memory_mib else f"with {gpus}{' in all' if devices else ''}"
