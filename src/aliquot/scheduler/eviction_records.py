"""What the scheduler decided about a pod and could not do at once, written on the pod itself.

An *eviction* is written before the pod is deleted: whoever is killed between the two writes finds it again and deletes
the pod, and whoever makes the next pod knows why the last one went. A *promise* is the place a waiting pod gets as soon
as those who are leaving have left; the next plan honours it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aliquot import labels, units
from aliquot.api import Pod, Workload
from aliquot.api.workload import WorkloadStatus
from aliquot.planner import DeviceShare
from aliquot.scheduler.policy import StopPolicy
from aliquot.workload_status import Interrupted

_FOR_OTHERS = ("reclaimed", "preempted", "moved")
_BY_OTHERS = ("node-lost", "disrupted")
# Without any grace a pod would be gone from the store before its process is, and its devices given out too early.
_LEAST_GRACE = 1


@dataclass(frozen=True, slots=True)
class EvictionRecord:
    """Why a pod is stopped."""

    rule: str  # the step of the scheduler: reclaim, preempt, consolidate or stale-gang; or node-lost, disrupted
    by: str  # the workload that gets the place, as project/name; empty where nobody does
    text: str
    at: float
    moved: bool = False

    @property
    def reason(self) -> str:
        """One word, as it is kept in the workload's history."""
        if self.moved:
            return "moved"
        words = {"reclaim": "reclaimed", "preempt": "preempted", "stale-gang": "stale"}
        return self.rule if self.rule in _BY_OTHERS else words.get(self.rule, "moved")


def eviction_record_text(notice: EvictionRecord) -> str:
    told = {"rule": notice.rule, "by": notice.by, "text": notice.text, "at": notice.at, "moved": notice.moved}
    return json.dumps(told, separators=(",", ":"))


def eviction_record_of(pod: Pod) -> EvictionRecord | None:
    """None where there is none, or one that we cannot read: then the pod was not stopped by us."""
    told = _read(pod, labels.EVICTION_RECORD)
    try:
        if told is None:
            return None
        moved = told["moved"] is True
        return EvictionRecord(str(told["rule"]), str(told["by"]), str(told["text"]), float(told["at"]), moved)
    except (KeyError, TypeError, ValueError):
        return None


def disruption_of(pod: Pod) -> EvictionRecord | None:
    """Why the cluster stops a pod that ran, without us: its node is drained, say. None where it does not."""
    told = next((one for one in pod.status.conditions if one.type == "DisruptionTarget" and one.status == "True"), None)
    if told is None or pod.metadata.deleted is None or eviction_record_of(pod) is not None:
        return None
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    text = f"the cluster stopped it on node {pod.spec.node_name}: {told.message or told.reason}"
    return EvictionRecord("disrupted", "", text, told.last_transition_time or pod.metadata.deleted)


def preemption_message(notice: EvictionRecord, deadline: float | None) -> str:
    """What the job itself is told, as JSON. Times are as in the API."""
    told = {
        "reason": notice.reason,
        "by": notice.by,
        "text": notice.text,
        "at": units.timestamp_text(notice.at),
        "deadline": None if deadline is None else units.timestamp_text(deadline),
    }
    return json.dumps(told) + "\n"


def interruption_by(record: EvictionRecord, pod: Pod, policy: StopPolicy) -> Interrupted:
    """The eviction as a fact about the pod's workload."""
    return Interrupted(pod, record.at, record.reason, record.by, record.text, ends_training=policy.ends)


def grace_of(workload: Workload, farewell: StopPolicy) -> int | None:
    """How long it may take to stop for others: as it says itself, or as its pool does; None: as long as its pod has."""
    own = workload.spec.preemption_grace
    grace = farewell.grace if own is None else own
    return None if grace is None else max(_LEAST_GRACE, grace)


def eviction_times(status: WorkloadStatus) -> tuple[float, ...]:
    """When a workload was stopped or moved for others, oldest first."""
    return tuple(sorted(stop.at for stop in status.interruptions if stop.reason in _FOR_OTHERS))


NominatedPlacement = tuple[str, tuple[DeviceShare, ...]]


def nomination_text(node: str, shares: Iterable[DeviceShare]) -> str:
    told = {"node": node, "shares": [[share.index, share.milli, share.memory_mib] for share in shares]}
    return json.dumps(told, separators=(",", ":"))


def nomination_of(pod: Pod) -> NominatedPlacement | None:
    told = _read(pod, labels.NOMINATION)
    try:
        return (
            None
            if told is None
            else (str(told["node"]), tuple(DeviceShare(*map(int, share)) for share in told["shares"]))
        )
    except (KeyError, TypeError, ValueError):
        return None


def _read(pod: Pod, mark: str) -> dict[str, Any] | None:
    text = pod.metadata.annotations.get(mark)
    if not text:
        return None
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
