"""What a plan and a step change in a simulated cluster. The plans are written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.errors import Invalid
from aliquot.planner.model import DeviceShare, TaskState
from aliquot.planner.plan import Bind, Eviction, Nomination, Placement, Plan, Refusal, Verdict
from aliquot.sim import SimulatedCluster, field_readers, load_clusters
from aliquot.sim.scenario_spec import Step

GPU0, GPU1 = (DeviceShare(0, 1000, 0),), (DeviceShare(1, 1000, 0),)


def cluster_with(*tasks: dict[str, Any], **fields: Any) -> SimulatedCluster:
    """One workload `w` with these tasks, on a node of two GPUs."""
    policy = fields.pop("policy", {})
    own = {"name": "w", "project": "a", "request": {"gpu": 1}, "tasks": list(tasks), **fields}
    data = {
        "policy": policy,
        "nodes": [{"name": "n1", "gpus": 2}, {"name": "n2", "gpus": 2}],
        "projects": [{"name": "a"}],
        "workloads": [own],
    }
    (cluster,) = load_clusters(data)
    return cluster


def running(**fields: Any) -> dict[str, Any]:
    return {"state": "running", "node": "n1", **fields}


def states(cluster: SimulatedCluster) -> list[str]:
    return [task.state.value for task in cluster.jobs["w"].tasks]


def apply_step(cluster: SimulatedCluster, action: str, operands: Any) -> None:
    cluster.apply_step(Step(action, operands), field_readers.FieldPath())


def refused() -> dict[str, tuple[Refusal, ...]]:
    return {"w": (Refusal("x", Verdict.NOT_NOW, "wait"),)}


def test_bound_runs() -> None:
    """A bound task runs in the next round, and its job has started now."""
    cluster = cluster_with({})
    apply_step(cluster, "advance", 5)
    assert cluster.apply(Plan(binds=(Bind("w", "w-0-0", "n1", GPU1),)))
    (task,) = cluster.jobs["w"].tasks
    assert (task.state, task.node, task.shares) == (TaskState.RUNNING, "n1", GPU1)
    assert cluster.jobs["w"].started == 5


def test_reserved_stays() -> None:
    """A reserved task keeps its node and devices, and renewing the reservation changes nothing."""
    cluster = cluster_with({})
    plan = Plan(nominations=(Nomination("w", "w-0-0", "n1", GPU1),))
    assert cluster.apply(plan)
    assert states(cluster) == ["reserved"]
    assert not cluster.apply(plan)
    assert not cluster.apply(Plan())
    assert cluster.jobs["w"].tasks[0].shares == GPU1
    assert cluster.jobs["w"].started is None


def test_reserved_elsewhere_is_a_change() -> None:
    """A reservation on another node is a change."""
    cluster = cluster_with({"state": "reserved", "node": "n1"})
    assert cluster.apply(Plan(nominations=(Nomination("w", "w-0-0", "n2", GPU0),)))
    assert cluster.jobs["w"].tasks[0].node == "n2"


def test_reservation_is_withdrawn() -> None:
    """A reserved task of a refused job is pending and has no node."""
    cluster = cluster_with({"state": "reserved", "node": "n1"})
    assert cluster.apply(Plan(refusals=refused()))
    assert (states(cluster), cluster.jobs["w"].tasks[0].node) == (["pending"], "")


def test_evicted_waits_again() -> None:
    """An evicted task has left its node and is pending."""
    cluster = cluster_with(running(), started=-5)
    assert cluster.apply(Plan(evictions=(Eviction("w", "w-0-0", "n1", "reclaim", "reclaimed by b/x", "x"),)))
    (task,) = cluster.jobs["w"].tasks
    assert (task.state, task.node, task.shares) == (TaskState.PENDING, "", ())
    assert cluster.jobs["w"].started is None


@pytest.mark.parametrize("reserved, state", [(False, "running"), (True, "reserved")])
def test_moved(reserved: bool, state: str) -> None:
    """A moved task runs on its new node, or is reserved there."""
    cluster = cluster_with(running())
    eviction = Eviction("w", "w-0-0", "n1", "consolidate", "moved for b/x", "x", Placement("n2", GPU1), reserved)
    assert cluster.apply(Plan(evictions=(eviction,)))
    assert states(cluster) == [state]
    assert cluster.jobs["w"].tasks[0].node == "n2"


def test_terminating_is_removed() -> None:
    """A terminating task is removed after one round, and a workload without tasks too."""
    cluster = cluster_with({"state": "terminating", "node": "n1"})
    assert cluster.apply(Plan())
    assert cluster.jobs == {}


def test_evicted_at_the_start_comes_back() -> None:
    """A task that the file lists as evicted is pending after one round."""
    cluster = cluster_with({"state": "evicted", "node": "n1"})
    assert cluster.apply(Plan())
    assert states(cluster) == ["pending"]


@pytest.mark.parametrize("since, left", [(-10, []), (-11, ["releasing"])])
def test_stuck_terminating_stays(since: int, left: list[str]) -> None:
    """A task that terminates for longer than the grace stays and keeps its devices."""
    cluster = cluster_with(
        {"state": "terminating", "node": "n1", "terminatingSince": since}, policy={"terminatingGrace": 10}
    )
    assert cluster.apply(Plan()) is (not left)
    assert [task.state.value for job in cluster.jobs.values() for task in job.tasks] == left


def test_nothing_changes() -> None:
    """A plan without decisions changes nothing."""
    cluster = cluster_with(running(), {})
    before = cluster.snapshot()
    assert not cluster.apply(Plan(refusals=refused()))
    assert cluster.snapshot() == before


def test_gang_becomes_stale_and_complete_again() -> None:
    """A gang is stale from the moment it falls below its minimum until it has its minimum again."""
    cluster = cluster_with(running(), {"state": "evicted", "node": "n1"}, minAvailable=2)

    def stale_since() -> float | None:
        return cluster.jobs["w"].stale_since

    assert stale_since() is None
    apply_step(cluster, "advance", 7)
    cluster.apply(Plan())
    assert stale_since() == 7
    cluster.apply(Plan(binds=(Bind("w", "w-1-0", "n1", GPU1),)))
    assert stale_since() is None


def test_stale_at_the_start() -> None:
    """A gang below its minimum at the start is stale since the start, or since the file's `staleSince`."""
    assert cluster_with(running(), {}, minAvailable=2).jobs["w"].stale_since == 0
    assert cluster_with(running(), {}, minAvailable=2, staleSince=-9).jobs["w"].stale_since == -9
    assert cluster_with(running(), {}, minAvailable=1).jobs["w"].stale_since is None


def test_subgroup_below_its_minimum() -> None:
    """A job is stale when one of its subgroups is, unless fewer subgroups suffice."""
    groups = [{"name": "x", "minAvailable": 1}, {"name": "y", "minAvailable": 1}]
    tasks = [running(subgroup="x"), {"subgroup": "y"}]
    assert cluster_with(*tasks, subgroups=groups).jobs["w"].stale_since == 0
    assert cluster_with(*tasks, subgroups=groups, minSubgroups=1).jobs["w"].stale_since is None


def test_finish() -> None:
    """Running tasks succeed and leave their node; pending tasks stay pending."""
    cluster = cluster_with(running(), {}, minAvailable=1)
    apply_step(cluster, "finish", ("w",))
    assert states(cluster) == ["succeeded", "pending"]
    assert cluster.jobs["w"].tasks[0].node == ""


def test_delete() -> None:
    """A deleted workload is removed at once."""
    cluster = cluster_with(running())
    apply_step(cluster, "delete", ("w",))
    assert cluster.jobs == {}


def test_node_changes() -> None:
    """Any field of a node can change; the others stay."""
    cluster = cluster_with()
    apply_step(cluster, "nodes", ({"name": "n1", "ready": False},))
    assert (cluster.nodes["n1"].ready, len(cluster.nodes["n1"].devices)) == (False, 2)


def test_gpu_in_use_cannot_be_removed() -> None:
    """A step cannot remove a GPU that a task holds."""
    cluster = cluster_with(running(devices=[1]))
    with pytest.raises(Invalid, match="takes away GPU 1, which w-0-0 holds"):
        apply_step(cluster, "nodes", ({"name": "n1", "gpus": 1},))


def test_project_changes() -> None:
    """Any field of a project can change; node types apply to its existing workloads."""
    cluster = cluster_with({})
    apply_step(cluster, "projects", ({"name": "a", "quota": {"gpu": 3000}, "node_types": {"training": ("dgx",)}},))
    assert cluster.queues["a"].pool_quota("default").quota[0] == 3000
    assert cluster.jobs["w"].tasks[0].node_types == ("dgx",)


def test_submitted_in_order() -> None:
    """A workload that is submitted later is younger, even if no time passed in between."""
    (cluster,) = load_clusters(
        {
            "projects": [{"name": "a"}],
            "workloads": [{"name": "z", "project": "a"}],
            "steps": [{"submit": [{"name": name, "project": "a"}]} for name in "yx"],
        }
    )
    for step in cluster.scenario.steps:
        cluster.apply_step(step, field_readers.FieldPath())
    ages = [cluster.jobs[name].created for name in "zyx"]
    assert ages == sorted(ages)
    assert len(set(ages)) == 3
    assert max(ages) <= cluster.now
