"""The scheduler's decisions: a snapshot goes in, a plan comes out. Pure: no I/O, clock, randomness or logging."""

from aliquot.core.cycle import plan
from aliquot.core.model import Device, Job, Node, Queue, Request, Share, Snapshot, Task, TaskState
from aliquot.core.plan import Bind, Plan, Refusal, Verdict

__all__ = [
    "Bind",
    "Device",
    "Job",
    "Node",
    "Plan",
    "Queue",
    "Refusal",
    "Request",
    "Share",
    "Snapshot",
    "Task",
    "TaskState",
    "Verdict",
    "plan",
]
