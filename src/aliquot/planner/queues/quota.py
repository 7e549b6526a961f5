"""What a queue may still take: within its quota what cannot be stopped, beyond it what can, never beyond its limit.

Asked of the job's queue and of every queue above it, before any placement, real or tried out.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner.model import RESOURCES, UNLIMITED, Amount, Bound
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.queues.queue_tree import QueueState
from aliquot.planner.reasons.format import amount_text


def allows(queue: QueueState, asked: Amount, nonpreemptible: bool) -> bool:
    """Whether this much more may be held here; `fixed`: by something that cannot be stopped."""
    for one in queue.path:
        limit, used = one.limit, one.used
        if limit is not UNLIMITED and _beyond(used, asked, limit):
            return False
        quota = one.quota
        if nonpreemptible and _beyond(one.nonpreemptible, asked, quota):
            return False
        if not one.over_quota and _beyond(used, asked, quota):
            return False
    return True


def _beyond(used: Sequence[int], asked: Amount, bound: Bound) -> bool:
    """Whether some resource that is asked for would be above its bound."""
    return (
        (bound[0] is not None and asked[0] > 0 and used[0] + asked[0] > bound[0])
        or (bound[1] is not None and asked[1] > 0 and used[1] + asked[1] > bound[1])
        or (bound[2] is not None and asked[2] > 0 and used[2] + asked[2] > bound[2])
    )


def exceeded_queue(queue: QueueState, nonpreemptible: bool) -> QueueState | None:
    """The first queue that now holds more than it may, after something was placed there."""
    for one in queue.path:
        for r in range(3):
            limit, quota = one.limit[r], one.quota[r]
            if limit is not None and one.used[r] > limit:
                return one
            if quota is not None and (
                (nonpreemptible and one.nonpreemptible[r] > quota) or (not one.over_quota and one.used[r] > quota)
            ):
                return one
    return None


def refusal(queue: QueueState, asked: Amount, nonpreemptible: bool) -> Refusal | None:
    """Why it does not pass: the first queue, from the job's own upwards, and the first resource."""
    for one in queue.path:
        for r in range(3):
            if not asked[r]:
                continue
            limit, quota = one.limit[r], one.quota[r]
            if limit is not None and one.used[r] + asked[r] > limit:
                return _over(one, r, asked[r], one.used[r], limit, "over-limit", "limit", "")
            if quota is None:
                continue
            if nonpreemptible and one.nonpreemptible[r] + asked[r] > quota:
                why = ", and what cannot be preempted must stay within quota"
                return _over(one, r, asked[r], one.nonpreemptible[r], quota, "over-quota", "quota", why)
            if not one.over_quota and one.used[r] + asked[r] > quota:
                why = ", and it may not go over quota"
                return _over(one, r, asked[r], one.used[r], quota, "over-quota", "quota", why)
    return None


def _over(queue: QueueState, r: int, asked: int, held: int, most: int, code: str, word: str, why: str) -> Refusal:
    kind = "department" if queue.children else "project"
    text = (
        f"{kind} {queue.display_name} holds {amount_text(held, r)} of its {word} of {amount_text(most, r)}"
        f" and this asks for {amount_text(asked, r)} more{why}"
    )
    missing = [0, 0, 0]
    missing[r] = held + asked - most
    verdict = Verdict.NEVER if asked > most else Verdict.NOT_NOW
    return Refusal(
        code,
        verdict,
        text,
        missing=(missing[0], missing[1], missing[2]),
        queue=queue.name,
        resource=RESOURCES[r],
    )
