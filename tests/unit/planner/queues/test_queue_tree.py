"""The tree of queues: who is in it, what each asks for, and what each is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aliquot.planner.model import Amount, Policy, Queue
from aliquot.planner.queues.queue_tree import QueueTree
from support.planner import quota


def tree(queues: dict[str, Queue], total: float = 8, wants: dict[str, float] | None = None, **policy: Any) -> QueueTree:
    """Settled: every leaf waits for this much, or for all there is."""
    found = QueueTree([replace(queue, name=name) for name, queue in queues.items()], "default")
    for leaf in found.leaves:
        leaf.pending = [round((wants or {}).get(leaf.name, total) * 1000), 0, 0]
    amount: Amount = (round(total * 1000), 0, 0)
    found.compute_shares(amount, Policy(**policy))
    return found


def shares(found: QueueTree) -> dict[str, float]:
    return {name: queue.share[0] / 1000 for name, queue in found.queues.items()}


def test_children_divide_what_their_parent_was_given() -> None:
    """Departments first, then their projects."""
    found = tree({"d": quota(4), "e": quota(4), "d1": quota(3, parent="d"), "d2": quota(1, parent="d")}, 16)
    assert shares(found) == {"d": 8, "e": 8, "d1": 6, "d2": 2}


def test_departments_can_be_left_out() -> None:
    """Without departments first, projects divide all of it, and a department has what its projects have."""
    queues = {"d": quota(0), "d1": quota(1, parent="d"), "d2": quota(1, parent="d"), "e": quota(2)}
    found = tree(queues, department_first=False)
    assert shares(found) == {"d": 4, "d1": 2, "d2": 2, "e": 4}


def test_department_asks_for_no_more_than_its_children_may_hold() -> None:
    """What limits below forbid is not set aside above."""
    found = tree({"d": quota(4), "e": quota(0), "d1": quota(4, limit=1, parent="d")})
    assert shares(found) == {"d": 1, "e": 7, "d1": 1}


def test_no_borrowing_is_a_limit() -> None:
    """A queue that may not go over quota is due no more than that."""
    assert shares(tree({"a": quota(2, over_quota=False), "b": quota(1)})) == {"a": 2, "b": 6}


def test_spare_by_quota() -> None:
    """By quota, weights do not count."""
    assert shares(tree({"a": quota(3, weight=1), "b": quota(1, weight=9)})) == {"a": 6, "b": 2}


def test_spare_by_weight() -> None:
    """By weight, quotas do not."""
    assert shares(tree({"a": quota(3, weight=1), "b": quota(1, weight=3)}, spare="weight")) == {"a": 4, "b": 4}


def test_without_quota_last_but_not_absent() -> None:
    """By quota, who has none shares what the others leave."""
    queues = {"a": quota(2), "x": quota(0), "y": quota(0)}
    assert shares(tree(queues, wants={"a": 4})) == {"a": 4, "x": 2, "y": 2}
    assert shares(tree(queues)) == {"a": 8, "x": 0, "y": 0}


def test_weight_of_nothing() -> None:
    """A weight of 0 is no spare, also where spare is split by quota."""
    assert shares(tree({"a": quota(2, weight=0), "b": quota(2)})) == {"a": 2, "b": 6}


def test_whole_units() -> None:
    """Shares in whole GPUs, where a cluster is used to that."""
    queues = {"a": quota(1), "b": quota(1), "c": quota(1)}
    assert shares(tree(queues, share_unit="whole")) == {"a": 3, "b": 3, "c": 2}


def test_holding_counts_as_wanting() -> None:
    """What a queue holds is part of what it asks for."""
    found = QueueTree([replace(quota(0), name="a"), replace(quota(0), name="b")], "default")
    found.queues["a"].add_usage((3000, 0, 0), nonpreemptible=False)
    found.queues["b"].pending = [9000, 0, 0]
    found.compute_shares((8000, 0, 0), Policy())
    assert shares(found) == {"a": 3, "b": 5}


def test_amounts_count_at_every_level() -> None:
    """What a project holds, its department holds."""
    found = tree({"d": quota(4), "p": quota(4, parent="d")})
    leaf = found.queues["p"]
    leaf.add_usage((500, 1000, 7), nonpreemptible=True)
    leaf.add_usage((1000, 0, 0), nonpreemptible=False)
    assert (found.queues["d"].used, found.queues["d"].nonpreemptible) == ([1500, 1000, 7], [500, 1000, 7])
    leaf.add_usage((500, 1000, 7), nonpreemptible=True, sign=-1)
    assert (found.queues["d"].used, found.queues["d"].nonpreemptible) == ([1000, 0, 0], [0, 0, 0])


def test_what_nobody_may_take_back() -> None:
    """The larger of quota and share, up to the limit; the limit alone where the quota has no bound."""
    found = tree({"a": quota(6), "b": quota(1), "c": quota(None, limit=5)}, wants={"a": 0, "b": 9, "c": 0})
    assert [found.queues[name].allowance[0] for name in "abc"] == [6000, 8000, 5000]


def test_minimum_run_times_come_from_above() -> None:
    """A queue that does not say has the minimum run times of its parent."""
    found = tree({"d": quota(1, reclaim_min_runtime=60), "p": quota(1, parent="d", preempt_min_runtime=5)})
    assert (found.queues["p"].reclaim_min, found.queues["p"].preempt_min) == (60, 5)


def test_parent_that_does_not_exist() -> None:
    """A queue below nothing is left out, and so is what hangs from it."""
    assert set(tree({"a": quota(1), "x": quota(1, parent="gone"), "y": quota(1, parent="x")}).queues) == {"a"}


def test_circle() -> None:
    """Queues that are their own ancestors are left out."""
    assert set(tree({"x": quota(1, parent="y"), "y": quota(1, parent="x"), "a": quota(1)}).queues) == {"a"}
