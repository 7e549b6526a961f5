"""What happens between rounds and in steps, with plans written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.errors import Invalid
from aliquot.planner.model import DeviceShare, TaskState
from aliquot.planner.plan import Bind, Eviction, Nomination, Placement, Plan, Refusal, Verdict
from aliquot.sim import World, field_readers, worlds
from aliquot.sim.records import Step

GPU0, GPU1 = (DeviceShare(0, 1000, 0),), (DeviceShare(1, 1000, 0),)


def world(*tasks: dict[str, Any], **fields: Any) -> World:
    """One workload `w` with these tasks, on a node of two GPUs."""
    policy = fields.pop("policy", {})
    own = {"name": "w", "project": "a", "request": {"gpu": 1}, "tasks": list(tasks), **fields}
    data = {
        "policy": policy,
        "nodes": [{"name": "n1", "gpus": 2}, {"name": "n2", "gpus": 2}],
        "projects": [{"name": "a"}],
        "workloads": [own],
    }
    (made,) = worlds(data)
    return made


def running(**fields: Any) -> dict[str, Any]:
    return {"state": "running", "node": "n1", **fields}


def states(made: World) -> list[str]:
    return [task.state.value for task in made.jobs["w"].tasks]


def happen(made: World, word: str, operands: Any) -> None:
    made.happen(Step(word, operands), field_readers.Place())


def refused() -> dict[str, tuple[Refusal, ...]]:
    return {"w": (Refusal("x", Verdict.NOT_NOW, "wait"),)}


def test_bound_runs() -> None:
    """What is bound runs in the next round, from now on."""
    made = world({})
    happen(made, "advance", 5)
    assert made.apply(Plan(binds=(Bind("w", "w-0-0", "n1", GPU1),)))
    (task,) = made.jobs["w"].tasks
    assert (task.state, task.node, task.shares) == (TaskState.RUNNING, "n1", GPU1)
    assert made.jobs["w"].started == 5


def test_reserved_stays() -> None:
    """A reservation is kept with its place, and keeping it changes nothing."""
    made = world({})
    plan = Plan(nominations=(Nomination("w", "w-0-0", "n1", GPU1),))
    assert made.apply(plan)
    assert states(made) == ["reserved"]
    assert not made.apply(plan)
    assert not made.apply(Plan())
    assert made.jobs["w"].tasks[0].shares == GPU1
    assert made.jobs["w"].started is None


def test_reserved_elsewhere_is_a_change() -> None:
    """A better place for a reservation is something new."""
    made = world({"state": "reserved", "node": "n1"})
    assert made.apply(Plan(nominations=(Nomination("w", "w-0-0", "n2", GPU0),)))
    assert made.jobs["w"].tasks[0].node == "n2"


def test_reservation_is_withdrawn() -> None:
    """Who was promised a place and is now told to wait has no place."""
    made = world({"state": "reserved", "node": "n1"})
    assert made.apply(Plan(refusals=refused()))
    assert (states(made), made.jobs["w"].tasks[0].node) == (["pending"], "")


def test_evicted_waits_again() -> None:
    """What is evicted is gone from its node, and pending."""
    made = world(running(), started=-5)
    assert made.apply(Plan(evictions=(Eviction("w", "w-0-0", "n1", "reclaim", "reclaimed by b/x", "x"),)))
    (task,) = made.jobs["w"].tasks
    assert (task.state, task.node, task.shares) == (TaskState.PENDING, "", ())
    assert made.jobs["w"].started is None


@pytest.mark.parametrize("reserved, state", [(False, "running"), (True, "reserved")])
def test_moved(reserved: bool, state: str) -> None:
    """What is moved is at its new place, or waits for it."""
    made = world(running())
    gone = Eviction("w", "w-0-0", "n1", "consolidate", "moved for b/x", "x", Placement("n2", GPU1), reserved)
    assert made.apply(Plan(evictions=(gone,)))
    assert states(made) == [state]
    assert made.jobs["w"].tasks[0].node == "n2"


def test_terminating_is_gone() -> None:
    """A terminating task is there for a round; a workload without tasks is gone."""
    made = world({"state": "terminating", "node": "n1"})
    assert made.apply(Plan())
    assert made.jobs == {}


def test_evicted_at_the_start_comes_back() -> None:
    """A task that a file shows being stopped is pending once it is gone."""
    made = world({"state": "evicted", "node": "n1"})
    assert made.apply(Plan())
    assert states(made) == ["pending"]


@pytest.mark.parametrize("since, left", [(-10, []), (-11, ["releasing"])])
def test_stuck_terminating_stays(since: int, left: list[str]) -> None:
    """A task that terminates for longer than the grace stays and keeps what it holds."""
    made = world({"state": "terminating", "node": "n1", "terminatingSince": since}, policy={"terminatingGrace": 10})
    assert made.apply(Plan()) is (not left)
    assert [task.state.value for job in made.jobs.values() for task in job.tasks] == left


def test_nothing_changes() -> None:
    """A plan without decisions leaves all as it is."""
    made = world(running(), {})
    before = made.snapshot()
    assert not made.apply(Plan(refusals=refused()))
    assert made.snapshot() == before


def test_gang_becomes_stale_and_sound_again() -> None:
    """A gang that falls below its minimum is stale from then on, until it is whole again."""
    made = world(running(), {"state": "evicted", "node": "n1"}, minAvailable=2)

    def stale_since() -> float | None:
        return made.jobs["w"].stale_since

    assert stale_since() is None
    happen(made, "advance", 7)
    made.apply(Plan())
    assert stale_since() == 7
    made.apply(Plan(binds=(Bind("w", "w-1-0", "n1", GPU1),)))
    assert stale_since() is None


def test_stale_at_the_start() -> None:
    """A gang that is below its minimum at the start is stale from the start, or since when the file says."""
    assert world(running(), {}, minAvailable=2).jobs["w"].stale_since == 0
    assert world(running(), {}, minAvailable=2, staleSince=-9).jobs["w"].stale_since == -9
    assert world(running(), {}, minAvailable=1).jobs["w"].stale_since is None


def test_subgroup_below_its_minimum() -> None:
    """A job is stale when one of its subgroups is, unless fewer subgroups suffice."""
    groups = [{"name": "x", "minAvailable": 1}, {"name": "y", "minAvailable": 1}]
    tasks = [running(subgroup="x"), {"subgroup": "y"}]
    assert world(*tasks, subgroups=groups).jobs["w"].stale_since == 0
    assert world(*tasks, subgroups=groups, minSubgroups=1).jobs["w"].stale_since is None


def test_finish() -> None:
    """Running tasks succeed and leave; waiting ones wait on."""
    made = world(running(), {}, minAvailable=1)
    happen(made, "finish", ("w",))
    assert states(made) == ["succeeded", "pending"]
    assert made.jobs["w"].tasks[0].node == ""


def test_delete() -> None:
    """A deleted workload is gone at once."""
    made = world(running())
    happen(made, "delete", ("w",))
    assert made.jobs == {}


def test_node_changes() -> None:
    """Any field of a node can change; the others stay."""
    made = world()
    happen(made, "nodes", ({"name": "n1", "ready": False},))
    assert (made.nodes["n1"].ready, len(made.nodes["n1"].devices)) == (False, 2)


def test_node_keeps_what_is_held() -> None:
    """A GPU that somebody holds cannot be taken away."""
    made = world(running(devices=[1]))
    with pytest.raises(Invalid, match="takes away GPU 1, which w-0-0 holds"):
        happen(made, "nodes", ({"name": "n1", "gpus": 1},))


def test_project_changes() -> None:
    """Any field of a project can change, and its workloads follow."""
    made = world({})
    happen(made, "projects", ({"name": "a", "quota": {"gpu": 3000}, "node_types": {"training": ("dgx",)}},))
    assert made.queues["a"].pool_quota("default").quota[0] == 3000
    assert made.jobs["w"].tasks[0].node_types == ("dgx",)


def test_submitted_in_order() -> None:
    """What comes later is younger, also without time passing in between."""
    (made,) = worlds(
        {
            "projects": [{"name": "a"}],
            "workloads": [{"name": "z", "project": "a"}],
            "steps": [{"submit": [{"name": name, "project": "a"}]} for name in "yx"],
        }
    )
    for step in made.scenario.steps:
        made.happen(step, field_readers.Place())
    ages = [made.jobs[name].created for name in "zyx"]
    assert ages == sorted(ages)
    assert len(set(ages)) == 3
    assert max(ages) <= made.now
