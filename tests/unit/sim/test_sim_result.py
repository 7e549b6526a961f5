"""The format of a result, by round and by step, from the real planner."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aliquot.planner.model import DeviceShare
from aliquot.planner.plan import Eviction, Nomination, Placement, Plan
from aliquot.sim import Simulation, load_clusters
from aliquot.sim import result as results

TWO = {
    "name": "two teams",
    "nodes": [{"name": "n1", "gpus": 2, "gpuMemoryMiB": 1000}],
    "projects": [{"name": "a", "quota": {"gpu": 1}}, {"name": "b", "quota": {"gpu": 1}}],
}
RUNNING = {"state": "running", "node": "n1"}
BORROWED = {
    **TWO,
    "workloads": [
        {"name": "b1", "project": "b", "request": {"gpu": 1}, "tasks": [RUNNING]},
        {"name": "b2", "project": "b", "request": {"gpu": 1}, "tasks": [RUNNING]},
        {"name": "a1", "project": "a", "request": {"gpu": 1}},
    ],
}


def simulate(data: Any, **options: Any) -> Any:
    (cluster,) = load_clusters(data)
    return Simulation(cluster, **options).run()


def test_shape_of_a_round() -> None:
    """A result without steps has rounds and a final state of the same format."""
    result = simulate(BORROWED)
    assert list(result) == ["name", "stable", "rounds", "final"]
    assert (result["name"], len(result["rounds"])) == ("two teams", 1)
    for report in (result["rounds"][0], result["final"]):
        assert list(report) == ["fairShare", "workloads", "tasks", "refusals"]
    assert result["rounds"][0]["fairShare"] == {"a": {"gpu": 1.0}, "b": {"gpu": 1.0}}


def test_reclaim_over_rounds() -> None:
    """A reclaim takes three rounds, and the fourth changes nothing."""
    result = simulate(BORROWED, rounds=4)
    states = [[each["tasks"][name]["state"] for name in ("b2-0-0", "a1-0-0")] for each in result["rounds"]]
    assert states == [["evicted", "reserved"], ["pending", "bound"], ["pending", "running"], ["pending", "running"]]
    assert result["stable"]


def test_last_round_with_a_change_is_not_stable() -> None:
    """Stable means that the last round changed nothing."""
    assert [simulate(BORROWED, rounds=count)["stable"] for count in (1, 2, 3)] == [False, False, True]


def test_evicted_task() -> None:
    """An evicted task has no node, its last node and the reason."""
    task = simulate(BORROWED)["rounds"][0]["tasks"]["b2-0-0"]
    assert (task["state"], task["node"], task["devices"]) == ("evicted", None, [])
    assert (task["from"], task["because"]) == ("n1", "reclaimed by a/a1")
    assert task["fromDevices"] == [{"index": 1, "milli": 1000, "memoryMiB": 1000}]


def test_running_task() -> None:
    """A running task has its devices and its share of each."""
    task = simulate(BORROWED)["rounds"][0]["tasks"]["b1-0-0"]
    assert task == {
        "state": "running",
        "node": "n1",
        "devices": [{"index": 0, "milli": 1000, "memoryMiB": 1000}],
        "because": None,
        "refusal": None,
    }


def test_final_is_after_the_last_round() -> None:
    """A task evicted in the last round is pending in the final state, with the reason."""
    result = simulate(BORROWED)["final"]
    task = result["tasks"]["b2-0-0"]
    assert (task["state"], task["refusal"]["code"]) == ("pending", "evicted")
    assert result["refusals"]["b2"][0]["text"] == "reclaimed by a/a1"
    assert result["tasks"]["a1-0-0"]["state"] == "reserved"


def test_moved_task() -> None:
    """A moved task has its new node, its last node, and whether the new node is only reserved."""
    (cluster,) = load_clusters(BORROWED)
    moved = Eviction(
        "b1",
        "b1-0-0",
        "n1",
        "consolidate",
        "moved for a1",
        "a1",
        Placement("n2", (DeviceShare(3, 1000, 7),)),
        nominated=True,
    )
    task = results.round_result(cluster, Plan(evictions=(moved,)))["tasks"]["b1-0-0"]
    assert (task["state"], task["node"], task["from"], task["reserved"]) == ("moved", "n2", "n1", True)
    assert task["devices"] == [{"index": 3, "milli": 1000, "memoryMiB": 7}]


def test_reserved_is_not_allocated() -> None:
    """Reserved devices do not count as allocated."""
    (cluster,) = load_clusters(BORROWED)
    plan = Plan(nominations=(Nomination("a1", "a1-0-0", "n1", (DeviceShare(0, 1000, 0),)),))
    workload = results.round_result(cluster, plan)["workloads"]["a1"]
    assert workload == {"state": "reserved", "allocated": {"gpu": 0}}


@pytest.mark.parametrize(
    "request_, gpus", [({"gpu": 2}, 2), ({"gpuFraction": 0.5}, 0.5), ({"gpuMemoryMiB": 333}, 0.333), ({}, 0)]
)
def test_allocated(request_: dict[str, Any], gpus: float) -> None:
    """The allocated GPUs of a workload."""
    result = simulate({**TWO, "workloads": [{"name": "w", "project": "a", "request": request_, "tasks": [RUNNING]}]})
    assert result["final"]["workloads"]["w"]["allocated"] == {"gpu": gpus}


def test_terminating_is_listed_once() -> None:
    """A terminating task is listed for one round."""
    tasks = [{"state": "terminating", "node": "n1"}]
    result = simulate(
        {**TWO, "workloads": [{"name": "w", "project": "a", "request": {"gpu": 1}, "tasks": tasks}]}, rounds=2
    )
    assert result["rounds"][0]["tasks"]["w-0-0"]["state"] == "terminating"
    assert [result["rounds"][1][word] for word in ("tasks", "workloads")] == [{}, {}]


def test_every_pending_task_has_a_refusal() -> None:
    """Every pending task has a refusal, also a gated one or one in a cluster without nodes."""
    result = simulate(
        {
            "projects": [{"name": "a"}],
            "workloads": [
                {"name": "w", "project": "a", "request": {"gpu": 1}, "replicas": 2},
                {"name": "g", "project": "a", "tasks": [{"state": "gated"}]},
            ],
        }
    )
    for report in (result["rounds"][0], result["final"]):
        assert all(task["refusal"]["text"] for task in report["tasks"].values())
        assert {task["state"] for task in report["tasks"].values()} == {"pending"}
        assert set(report["refusals"]) == {"w", "g"}
    assert result["final"]["tasks"]["g-0-0"]["refusal"]["code"] == "gated"


def test_evicted_at_the_start() -> None:
    """A task that the file lists as evicted is pending in the final state, with a refusal of its own."""
    tasks = [{"state": "evicted", "node": "n1"}]
    result = simulate({**TWO, "workloads": [{"name": "w", "project": "a", "request": {"gpu": 1}, "tasks": tasks}]})
    assert result["rounds"][0]["tasks"]["w-0-0"]["state"] == "evicted"
    assert result["final"]["tasks"]["w-0-0"]["refusal"]["code"] == "evicted"


STEPS = {
    **TWO,
    "workloads": [{"name": "b1", "project": "b", "request": {"gpu": 1}, "replicas": 2, "minAvailable": 1}],
    "steps": [
        {"submit": [{"name": "a1", "project": "a", "request": {"gpu": 1}}]},
        {"delete": ["a1"]},
        {"advance": 60},
    ],
}


def test_shape_of_steps() -> None:
    """Each step has its settled state, its number of rounds and its evictions."""
    result = simulate(STEPS)
    assert list(result) == ["name", "stable", "steps", "final"]
    assert len(result["steps"]) == 3
    first, second, third = result["steps"]
    assert list(first) == ["fairShare", "workloads", "tasks", "refusals", "rounds", "evictions"]
    assert first["workloads"]["a1"] == {"state": "running", "allocated": {"gpu": 1}}
    (gone,) = first["evictions"]
    assert gone == {"workload": "b1", "task": gone["task"], "by": "a1", "rule": "reclaim", "moved": False}
    assert first["rounds"] == 3
    assert "a1" not in second["workloads"]
    assert second["workloads"]["b1"]["allocated"] == {"gpu": 2}
    assert (third["rounds"], third["evictions"]) == (1, [])
    assert result["stable"]


def test_steps_that_do_not_settle_are_not_stable() -> None:
    """`rounds` of the file limits each step."""
    result = simulate({**STEPS, "rounds": 1, "steps": STEPS["steps"][:1]})
    assert (result["steps"][0]["rounds"], result["stable"]) == (1, False)


def test_same_file_same_bytes() -> None:
    """The same file gives the same result, byte for byte."""
    assert results.to_json(simulate(STEPS)) == results.to_json(simulate(STEPS))


def test_text_is_the_result() -> None:
    """The text is the result as JSON, for one scenario and for a list."""
    result = simulate(STEPS)
    assert json.loads(results.to_json(result)) == result
    assert json.loads(results.to_json([result, simulate(BORROWED)])) == [result, simulate(BORROWED)]


def test_pools_have_their_own_shares() -> None:
    """Fair shares of other pools are listed with those of pool default."""
    result = simulate(
        {
            "nodes": [{"name": "n1", "gpus": 2, "pool": "h100"}],
            "projects": [{"name": "a", "pools": {"h100": {"quota": {"gpu": 1}}}}],
            "workloads": [{"name": "w", "project": "a", "request": {"gpu": 1}, "nodePools": ["h100"]}],
        }
    )
    assert result["final"]["fairShare"] == {"a": {"gpu": 0.0, "pools": {"h100": {"gpu": 1.0}}}}


def test_timing() -> None:
    """Timing is added when asked for, to every round and step, and changes nothing else."""
    timed = simulate(BORROWED, rounds=2, timing=True)
    for report in timed["rounds"]:
        timing = report.pop("timing")
        assert list(timing) == ["loadMs", "planMs", "peakMiB"]
        assert all(value > 0 for value in timing.values())
    assert timed == simulate(BORROWED, rounds=2)
    assert all("timing" in report for report in simulate(STEPS, timing=True)["steps"])
