"""What the scheduler decided about a pod and could not do at once, written on the pod itself.

An *eviction* is written before the pod is deleted: whoever is killed between the two writes finds it again and deletes
the pod, and whoever makes the next pod knows why the last one went. A *promise* is the place a waiting pod gets as soon
as those who are leaving have left; the next plan honours it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from aliquot import labels
from aliquot.core import Share
from aliquot.types import Pod
from aliquot.types.workload import Interruption, WorkloadStatus

_INTERRUPTIONS_KEPT = 100  # the latest; enough to see a pattern, and no object grows for ever


@dataclass(frozen=True, slots=True)
class Notice:
    """Why a pod is stopped."""

    rule: str  # the step of the scheduler: reclaim, preempt, consolidate or stale-gang
    by: str  # the workload that gets the place, as project/name; empty for a stale gang
    text: str
    at: float
    moved: bool = False

    @property
    def reason(self) -> str:
        """One word, as it is kept in the workload's history."""
        if self.moved:
            return "moved"
        return {"reclaim": "reclaimed", "preempt": "preempted", "stale-gang": "stale"}.get(self.rule, "moved")


def notice_text(notice: Notice) -> str:
    told = {"rule": notice.rule, "by": notice.by, "text": notice.text, "at": notice.at, "moved": notice.moved}
    return json.dumps(told, separators=(",", ":"))


def notice_of(pod: Pod) -> Notice | None:
    """None where there is none, or one that we cannot read: then the pod was not stopped by us."""
    told = _read(pod, labels.EVICTED)
    try:
        if told is None:
            return None
        moved = told["moved"] is True
        return Notice(str(told["rule"]), str(told["by"]), str(told["text"]), float(told["at"]), moved)
    except (KeyError, TypeError, ValueError):
        return None


def interrupted(status: WorkloadStatus, notice: Notice, pod: str, now: float) -> WorkloadStatus:
    """A workload's status with one more stop in its history: once for each pod."""
    if any(one.pod == pod for one in status.interruptions):
        return status
    lost = now - status.started_at if status.phase == "Running" and status.started_at is not None else 0.0
    one = Interruption(
        at=notice.at, reason=notice.reason, by=notice.by, lost_seconds=lost, message=notice.text, pod=pod
    )
    return replace(
        status,
        interruptions=(*status.interruptions, one)[-_INTERRUPTIONS_KEPT:],
        interruption_count=status.interruption_count + 1,
    )


Promise = tuple[str, tuple[Share, ...]]


def promise_text(node: str, shares: Iterable[Share]) -> str:
    told = {"node": node, "shares": [[share.index, share.milli, share.memory_mib] for share in shares]}
    return json.dumps(told, separators=(",", ":"))


def promise_of(pod: Pod) -> Promise | None:
    told = _read(pod, labels.PROMISED)
    try:
        return None if told is None else (str(told["node"]), tuple(Share(*map(int, share)) for share in told["shares"]))
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
