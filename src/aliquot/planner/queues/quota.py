"""What a queue may hold: nonpreemptible jobs up to its quota, preemptible jobs beyond it, nothing beyond its limit.

Each check covers the job's queue and every queue above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner.model import RESOURCES, UNLIMITED, Amount, Bound
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.queues.queue_tree import QueueState
from aliquot.planner.reasons.format import amount_text


def allows(leaf: QueueState, asked: Amount, nonpreemptible: bool) -> bool:
    """Whether a queue may hold this much more, for a preemptible or nonpreemptible job."""
    for queue in leaf.path:
        limit, used = queue.limit, queue.used
        if limit is not UNLIMITED and _exceeds(used, asked, limit):
            return False
        quota = queue.quota
        if nonpreemptible and _exceeds(queue.nonpreemptible, asked, quota):
            return False
        if not queue.over_quota and _exceeds(used, asked, quota):
            return False
    return True


def _exceeds(used: Sequence[int], asked: Amount, bound: Bound) -> bool:
    """Whether some resource that is asked for would be above its bound."""
    return (
        (bound[0] is not None and asked[0] > 0 and used[0] + asked[0] > bound[0])
        or (bound[1] is not None and asked[1] > 0 and used[1] + asked[1] > bound[1])
        or (bound[2] is not None and asked[2] > 0 and used[2] + asked[2] > bound[2])
    )


def exceeded_queue(leaf: QueueState, nonpreemptible: bool) -> QueueState | None:
    """The first queue, from the leaf upwards, that holds more than it may; None if all are within their bounds."""
    for queue in leaf.path:
        for r in range(3):
            limit, quota = queue.limit[r], queue.quota[r]
            if limit is not None and queue.used[r] > limit:
                return queue
            if quota is None:
                continue
            if (nonpreemptible and queue.nonpreemptible[r] > quota) or (not queue.over_quota and queue.used[r] > quota):
                return queue
    return None


def refusal(leaf: QueueState, asked: Amount, nonpreemptible: bool) -> Refusal | None:
    """Why `allows` says no: the first queue, from the leaf upwards, and its first resource that is exceeded."""
    for queue in leaf.path:
        for r in range(3):
            if not asked[r]:
                continue
            limit, quota = queue.limit[r], queue.quota[r]
            if limit is not None and queue.used[r] + asked[r] > limit:
                return _refusal(queue, r, asked[r], queue.used[r], limit, "over-limit", "")
            if quota is None:
                continue
            if nonpreemptible and queue.nonpreemptible[r] + asked[r] > quota:
                why = ", and non-preemptible workloads must stay within quota"
                return _refusal(queue, r, asked[r], queue.nonpreemptible[r], quota, "over-quota", why)
            if not queue.over_quota and queue.used[r] + asked[r] > quota:
                why = ", and it may not go over quota"
                return _refusal(queue, r, asked[r], queue.used[r], quota, "over-quota", why)
    return None


def _refusal(queue: QueueState, r: int, asked: int, held: int, bound: int, code: str, why: str) -> Refusal:
    kind = "department" if queue.children else "project"
    text = (
        f"{kind} {queue.display_name} holds {amount_text(held, r)} of its {code.removeprefix('over-')} of"
        f" {amount_text(bound, r)}; this asks for {amount_text(asked, r)} more{why}"
    )
    missing = [0, 0, 0]
    missing[r] = held + asked - bound
    verdict = Verdict.NEVER if asked > bound else Verdict.NOT_NOW
    return Refusal(
        code,
        verdict,
        text,
        missing=(missing[0], missing[1], missing[2]),
        queue=queue.name,
        resource=RESOURCES[r],
    )
