"""Where nodes have worker roles, GPU tasks use GPU workers and other tasks use CPU workers."""

from __future__ import annotations

from aliquot.labels import CPU_WORKER, GPU_WORKER
from aliquot.planner.model import Node, Task
from aliquot.planner.placement.fit.cluster import Cluster
from aliquot.planner.plan import Refusal, Verdict


def has_role(task: Task, node: Node, cluster: Cluster) -> Refusal | None:
    if not cluster.roles:
        return None
    gpu = task.request.devices > 0 or bool(task.request.mig)
    if (GPU_WORKER if gpu else CPU_WORKER) in node.labels:
        return None
    return Refusal("node-role", Verdict.NEVER, f"not a {'GPU' if gpu else 'CPU'} worker")
