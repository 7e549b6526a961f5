"""MIG requests need nodes with MIG slices; fractions need GPUs that are not partitioned by MIG."""

from __future__ import annotations

from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def offers_device(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    request = task.request
    if request.mig:
        if node.mig == "single" or not any(device.profile for device in node.devices):
            return Refusal("mig", Verdict.NEVER, "without MIG slices")
        return None
    if not request.devices:
        return None
    if node.mig == "mixed":
        return Refusal("mig", Verdict.NEVER, "with GPUs that are cut into MIG slices")
    if node.mig == "single" and not request.whole:
        return Refusal("mig", Verdict.NEVER, "with MIG slices, which cannot be shared")
    return None
