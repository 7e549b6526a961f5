"""The scheduler's decisions: a snapshot goes in, a plan comes out. Pure: no I/O, clock, randomness or logging."""

from aliquot.core.cycle import plan
from aliquot.core.model import (
    Closeness,
    Device,
    Group,
    Job,
    Neighbours,
    Node,
    Policy,
    Queue,
    Request,
    Share,
    Snapshot,
    Taint,
    Task,
    TaskState,
    Terms,
    Toleration,
)
from aliquot.core.plan import Bind, Eviction, Place, Plan, Refusal, Reservation, Verdict

__all__ = [
    "Bind",
    "Closeness",
    "Device",
    "Eviction",
    "Group",
    "Job",
    "Neighbours",
    "Node",
    "Place",
    "Plan",
    "Policy",
    "Queue",
    "Refusal",
    "Request",
    "Reservation",
    "Share",
    "Snapshot",
    "Taint",
    "Task",
    "TaskState",
    "Terms",
    "Toleration",
    "Verdict",
    "plan",
]
