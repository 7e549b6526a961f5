"""The tree of queues: which queues are in it, their demand and their shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aliquot.planner.model import Amount, Policy, Queue
from aliquot.planner.queues.queue_tree import QueueTree
from support.planner import quota


def tree(queues: dict[str, Queue], total: float = 8, wants: dict[str, float] | None = None, **policy: Any) -> QueueTree:
    """A tree with shares. Every leaf waits for the amount in `wants`, or for the total."""
    queue_tree = QueueTree([replace(queue, name=name) for name, queue in queues.items()], "default")
    for leaf in queue_tree.leaves:
        leaf.pending = [round((wants or {}).get(leaf.name, total) * 1000), 0, 0]
    amount: Amount = (round(total * 1000), 0, 0)
    queue_tree.compute_shares(amount, Policy(**policy))
    return queue_tree


def shares(queue_tree: QueueTree) -> dict[str, float]:
    return {name: queue.share[0] / 1000 for name, queue in queue_tree.queues.items()}


def test_children_divide_their_parents_share() -> None:
    """Departments divide the total, then their projects divide each department's share."""
    queue_tree = tree({"d": quota(4), "e": quota(4), "d1": quota(3, parent="d"), "d2": quota(1, parent="d")}, 16)
    assert shares(queue_tree) == {"d": 8, "e": 8, "d1": 6, "d2": 2}


def test_without_departments_first() -> None:
    """Projects divide the total directly, and a department's share is the sum of its projects' shares."""
    queues = {"d": quota(0), "d1": quota(1, parent="d"), "d2": quota(1, parent="d"), "e": quota(2)}
    queue_tree = tree(queues, department_first=False)
    assert shares(queue_tree) == {"d": 4, "d1": 2, "d2": 2, "e": 4}


def test_department_demands_no_more_than_its_children_may_hold() -> None:
    """A department gets no share for what the limits of its projects forbid."""
    queue_tree = tree({"d": quota(4), "e": quota(0), "d1": quota(4, limit=1, parent="d")})
    assert shares(queue_tree) == {"d": 1, "e": 7, "d1": 1}


def test_no_borrowing_is_a_limit() -> None:
    """The share of a queue that may not go over quota ends at its quota."""
    assert shares(tree({"a": quota(2, over_quota=False), "b": quota(1)})) == {"a": 2, "b": 6}


def test_spare_by_quota() -> None:
    """Spare by quota: weights do not count."""
    assert shares(tree({"a": quota(3, weight=1), "b": quota(1, weight=9)})) == {"a": 6, "b": 2}


def test_spare_by_weight() -> None:
    """Spare by weight: quotas do not count."""
    assert shares(tree({"a": quota(3, weight=1), "b": quota(1, weight=3)}, spare="weight")) == {"a": 4, "b": 4}


def test_queues_without_quota_come_last() -> None:
    """Spare by quota: queues without quota divide what the others leave."""
    queues = {"a": quota(2), "x": quota(0), "y": quota(0)}
    assert shares(tree(queues, wants={"a": 4})) == {"a": 4, "x": 2, "y": 2}
    assert shares(tree(queues)) == {"a": 8, "x": 0, "y": 0}


def test_weight_of_zero() -> None:
    """A queue with weight 0 gets no spare, also where spare is divided by quota."""
    assert shares(tree({"a": quota(2, weight=0), "b": quota(2)})) == {"a": 2, "b": 6}


def test_whole_units() -> None:
    """Shares in whole GPUs, if the policy says so."""
    queues = {"a": quota(1), "b": quota(1), "c": quota(1)}
    assert shares(tree(queues, share_unit="whole")) == {"a": 3, "b": 3, "c": 2}


def test_usage_is_part_of_demand() -> None:
    """What a queue holds is part of its demand."""
    queue_tree = QueueTree([replace(quota(0), name="a"), replace(quota(0), name="b")], "default")
    queue_tree.queues["a"].add_usage((3000, 0, 0), nonpreemptible=False)
    queue_tree.queues["b"].pending = [9000, 0, 0]
    queue_tree.compute_shares((8000, 0, 0), Policy())
    assert shares(queue_tree) == {"a": 3, "b": 5}


def test_usage_counts_at_every_level() -> None:
    """A project's usage is also its department's."""
    queue_tree = tree({"d": quota(4), "p": quota(4, parent="d")})
    leaf = queue_tree.queues["p"]
    leaf.add_usage((500, 1000, 7), nonpreemptible=True)
    leaf.add_usage((1000, 0, 0), nonpreemptible=False)
    assert (queue_tree.queues["d"].used, queue_tree.queues["d"].nonpreemptible) == ([1500, 1000, 7], [500, 1000, 7])
    leaf.add_usage((500, 1000, 7), nonpreemptible=True, sign=-1)
    assert (queue_tree.queues["d"].used, queue_tree.queues["d"].nonpreemptible) == ([1000, 0, 0], [0, 0, 0])


def test_allowance() -> None:
    """The larger of quota and share, up to the limit; the limit alone where the quota has no bound."""
    queue_tree = tree({"a": quota(6), "b": quota(1), "c": quota(None, limit=5)}, wants={"a": 0, "b": 9, "c": 0})
    assert [queue_tree.queues[name].allowance[0] for name in "abc"] == [6000, 8000, 5000]


def test_minimum_run_times_are_inherited() -> None:
    """A queue without its own minimum run times has those of its parent."""
    queue_tree = tree({"d": quota(1, reclaim_min_runtime=60), "p": quota(1, parent="d", preempt_min_runtime=5)})
    assert (queue_tree.queues["p"].reclaim_min, queue_tree.queues["p"].preempt_min) == (60, 5)


def test_parent_that_does_not_exist() -> None:
    """A queue whose parent does not exist is left out, with all queues below it."""
    assert set(tree({"a": quota(1), "x": quota(1, parent="gone"), "y": quota(1, parent="x")}).queues) == {"a"}


def test_cycle() -> None:
    """A queue that is its own ancestor is left out."""
    assert set(tree({"x": quota(1, parent="y"), "y": quota(1, parent="x"), "a": quota(1)}).queues) == {"a"}
