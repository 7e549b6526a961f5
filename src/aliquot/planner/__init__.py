"""The pure scheduler: a snapshot goes in, a plan comes out. No I/O, clock, randomness or logging belongs here.

Entry points are `plan` and `IncrementalPlanner`. `model` is what goes in, `plan` what comes out, `cycle.run_cycle` the
steps in between. `queues` decides which job is next, `placement` where it runs, `preemption` what is evicted for it,
`reasons` what users are told. The live scheduler, which reads the cluster and carries plans out, is
`aliquot.scheduler`.
"""

from aliquot.planner.incremental import IncrementalPlanner, plan
from aliquot.planner.model import (
    Device,
    DeviceShare,
    Job,
    Node,
    NodeSelectorRequirement,
    NodeSelectorTerms,
    PodAffinityTerm,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    SubGroup,
    Taint,
    Task,
    TaskState,
    Toleration,
    TopologyConstraint,
)
from aliquot.planner.plan import Bind, Eviction, Nomination, Placement, Plan, Refusal, Verdict

__all__ = [
    "Bind",
    "Device",
    "DeviceShare",
    "Eviction",
    "IncrementalPlanner",
    "Job",
    "Node",
    "NodeSelectorRequirement",
    "NodeSelectorTerms",
    "Nomination",
    "Placement",
    "Plan",
    "PodAffinityTerm",
    "Policy",
    "PoolQuota",
    "Queue",
    "Refusal",
    "Request",
    "Snapshot",
    "SubGroup",
    "Taint",
    "Task",
    "TaskState",
    "Toleration",
    "TopologyConstraint",
    "Verdict",
    "plan",
]
