"""Whether a queue may hold more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot.planner import Queue, Verdict
from aliquot.planner.model import Amount
from aliquot.planner.queues import quota as quota_module
from aliquot.planner.queues.queue_tree import QueueState, QueueTree
from support.planner import quota


def queue_with_usage(own: Queue, above: Queue | None = None) -> QueueState:
    """A project that holds one GPU for a preemptible job and one for a nonpreemptible job."""
    queues = [replace(own, name="p", parent="d" if above else "")]
    queues += [replace(above, name="d")] if above else []
    queue = QueueTree(queues, "default").queues["p"]
    queue.add_usage((1000, 0, 0), nonpreemptible=False)
    queue.add_usage((1000, 0, 0), nonpreemptible=True)
    return queue


@pytest.mark.parametrize(
    ("own", "above", "nonpreemptible", "code"),
    [
        pytest.param(quota(2), None, False, None, id="preemptible jobs may borrow"),
        pytest.param(quota(2), None, True, None, id="borrowed GPUs do not count against nonpreemptible jobs"),
        pytest.param(quota(1), None, True, "over-quota", id="nonpreemptible jobs stay within quota"),
        pytest.param(quota(2, over_quota=False), None, False, "over-quota", id="a project that may not borrow"),
        pytest.param(quota(None, over_quota=False), None, False, None, id="an unlimited quota is never exceeded"),
        pytest.param(quota(9, limit=2), None, False, "over-limit", id="a limit holds for every job"),
        pytest.param(quota(9, limit=3), None, True, None, id="up to the limit"),
        pytest.param(quota(9), quota(1), True, "over-quota", id="the quota of the department"),
        pytest.param(quota(9), quota(9, limit=2), False, "over-limit", id="the limit of the department"),
        pytest.param(quota(9), quota(2, over_quota=False), False, "over-quota", id="a department that may not borrow"),
    ],
)
def test_one_more_gpu(own: Queue, above: Queue | None, nonpreemptible: bool, code: str | None) -> None:
    """One GPU more, for a project that holds one for a preemptible and one for a nonpreemptible job."""
    queue = queue_with_usage(own, above)
    refusal = quota_module.refusal(queue, (1000, 0, 0), nonpreemptible)
    assert quota_module.allows(queue, (1000, 0, 0), nonpreemptible) == (code is None)
    assert (refusal.code if refusal else None) == code


@pytest.mark.parametrize("asked", [(0, 0, 0), (0, 5000, 1 << 30)])
def test_only_requested_resources_count(asked: Amount) -> None:
    """A queue above its GPU quota may still start work without GPUs."""
    assert quota_module.allows(queue_with_usage(quota(0, over_quota=False)), asked, nonpreemptible=True)


def test_facts_of_a_refusal() -> None:
    """A refusal names the queue, the resource and what is missing."""
    refusal = quota_module.refusal(queue_with_usage(quota(9), quota(2)), (1500, 0, 0), nonpreemptible=True)
    assert refusal is not None
    assert (refusal.queue, refusal.resource, refusal.missing) == ("d", "gpu", (500, 0, 0))
    assert refusal.text.startswith("department d ")


@pytest.mark.parametrize(("gpu", "verdict"), [(1000, Verdict.NOT_NOW), (3000, Verdict.NEVER)])
def test_never_if_above_the_whole_bound(gpu: int, verdict: Verdict) -> None:
    """Waiting helps only if the request by itself is within the bound."""
    refusal = quota_module.refusal(queue_with_usage(quota(0, limit=2)), (gpu, 0, 0), nonpreemptible=False)
    assert refusal is not None
    assert refusal.verdict is verdict


def test_exceeded_queue() -> None:
    """After a placement, the first queue that holds too much is found."""
    queue = queue_with_usage(quota(9), quota(9, limit=2))
    assert quota_module.exceeded_queue(queue, nonpreemptible=False) is None
    queue.add_usage((1, 0, 0), nonpreemptible=False)
    assert quota_module.exceeded_queue(queue, nonpreemptible=False) is queue.parent
