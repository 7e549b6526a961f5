"""Eviction records: why a pod is stopped, written on the pod before it is deleted.

A scheduler that starts after a crash finds the record of a pod that was not deleted, and deletes it. The controller
that creates the next pod reads there why the last one was stopped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from aliquot import labels, units
from aliquot.api import Pod, Workload
from aliquot.api.workload import WorkloadStatus
from aliquot.scheduler.annotations import json_annotation
from aliquot.scheduler.policy import StopPolicy
from aliquot.workload_status import Interrupted

_EVICTED_BY_SCHEDULER = ("reclaimed", "preempted", "moved")  # reasons in a workload's history
_STOPPED_BY_CLUSTER = ("node-lost", "disrupted")
# Without a grace period the pod would leave the store before its process ends, and its devices would be given out too
# early.
_MIN_GRACE = 1


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """Why a pod is stopped."""

    rule: str  # the step of the planner: reclaim, preempt, consolidate or stale-gang; or node-lost, disrupted
    by: str  # the workload that gets the place, as project/name; empty where there is none
    text: str
    at: float
    moved: bool = False

    @property
    def reason(self) -> str:
        """One word, as in the workload's history."""
        if self.moved:
            return "moved"
        words = {"reclaim": "reclaimed", "preempt": "preempted", "stale-gang": "stale"}
        return self.rule if self.rule in _STOPPED_BY_CLUSTER else words.get(self.rule, "moved")


def eviction_record_text(record: EvictionRecord) -> str:
    value = {"rule": record.rule, "by": record.by, "text": record.text, "at": record.at, "moved": record.moved}
    return json.dumps(value, separators=(",", ":"))


def eviction_record_of(pod: Pod) -> EvictionRecord | None:
    """None where there is none, or one that cannot be read: then the scheduler did not evict the pod."""
    value = json_annotation(pod, labels.EVICTION_RECORD)
    if value is None:
        return None
    try:
        moved = value["moved"] is True
        return EvictionRecord(str(value["rule"]), str(value["by"]), str(value["text"]), float(value["at"]), moved)
    except (KeyError, TypeError, ValueError):
        return None


def disruption_of(pod: Pod) -> EvictionRecord | None:
    """Why the cluster stops a bound pod without the scheduler, such as a drain of its node. None where it does not."""
    targets = [condition for condition in pod.status.conditions if condition.type == "DisruptionTarget"]
    disruption = next((condition for condition in targets if condition.status == "True"), None)
    if disruption is None or pod.metadata.deleted is None or eviction_record_of(pod) is not None:
        return None
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    text = f"the cluster stopped it on node {pod.spec.node_name}: {disruption.message or disruption.reason}"
    return EvictionRecord("disrupted", "", text, disruption.last_transition_time or pod.metadata.deleted)


def preemption_message(record: EvictionRecord, deadline: float | None) -> str:
    """The JSON that the job itself can read. Times are written as in the API."""
    message = {
        "reason": record.reason,
        "by": record.by,
        "text": record.text,
        "at": units.timestamp_text(record.at),
        "deadline": None if deadline is None else units.timestamp_text(deadline),
    }
    return json.dumps(message) + "\n"


def interruption_by(record: EvictionRecord, pod: Pod, policy: StopPolicy) -> Interrupted:
    """The eviction as a fact about the pod's workload."""
    return Interrupted(pod, record.at, record.reason, record.by, record.text, ends_training=policy.ends)


def grace_of(workload: Workload, policy: StopPolicy) -> int | None:
    """How long an evicted pod of the workload has to stop: by its spec, otherwise by the policy of its pool. None means
    the pod's own grace period."""
    own = workload.spec.preemption_grace
    grace = policy.grace if own is None else own
    return None if grace is None else max(_MIN_GRACE, grace)


def eviction_times(status: WorkloadStatus) -> tuple[float, ...]:
    """When the scheduler evicted or moved the workload, oldest first."""
    times = (stop.at for stop in status.interruptions if stop.reason in _EVICTED_BY_SCHEDULER)
    return tuple(sorted(times))
