"""What would let a waiting job run: every change that is reported was tried."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Job, Snapshot, plan
from aliquot.planner.reasons.what_if import trials, what_would_help
from support.planner import World, cluster, gpus, quota


def changes(world: World, name: str) -> list[str]:
    return [change.text for change in what_would_help(world.snapshot(), world.policy, world.now, name, world.plan())]


def without(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.name != name))


def test_another_job_ends() -> None:
    """If the planner reports that the end of another job would help, it does."""
    world = cluster([gpus(2)], {"a": quota(2)}).running("x", "n1", [0, 1], gpu=2).pending("j", gpu=1)
    assert changes(world, "j") == ["if x ended it would run"]
    snapshot = without(world.snapshot(), "x")
    assert [bind.job for bind in plan(snapshot, world.policy, world.now).binds] == ["j"]


def test_minimum_run_time_ends() -> None:
    """If only a minimum run time prevents it, the time at which that ends is reported."""
    world = cluster([gpus(1)], {"a": quota(0, reclaim_min_runtime=300.0), "b": quota(1)})
    world.running("x", "n1", [0], started=world.now - 100).pending("j", "b", gpu=1)
    change = what_would_help(world.snapshot(), world.policy, world.now, "j")[0]
    assert (change.kind, change.until) == ("later", world.now + 200)
    assert not plan(world.snapshot(), world.policy, world.now + 199).nominations
    assert plan(world.snapshot(), world.policy, world.now + 200).nominations


def test_job_that_can_never_fit() -> None:
    """For a job that fits no node, a smaller request is tried, but not the end of other jobs."""
    world = cluster([gpus(2)], {"a": quota(9)}).running("x", "n1", [0]).pending("j", gpu=3)
    assert changes(world, "j") == ["with 1 GPU instead of 3 GPUs it would run now"]


def test_larger_than_its_limit() -> None:
    """A job larger than its project's limit is helped by a larger limit."""
    world = cluster([gpus(4)], {"a": quota(2, limit=2)}).pending("j", gpu=3)
    assert "with a limit of 3 GPUs for a (2 GPUs now) it would run now" in changes(world, "j")


def test_job_that_starts() -> None:
    """Nothing is tried for a job that starts."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("j", gpu=1)
    assert list(trials(world.snapshot(), world.policy, world.now, "j")) == []


def test_trials_one_by_one() -> None:
    """A caller can stop between two trials."""
    world = cluster([gpus(2)], {"a": quota(2)}).running("x", "n1", [0, 1], gpu=2).pending("j", gpu=2)
    one_by_one = trials(world.snapshot(), world.policy, world.now, "j", world.plan())
    assert next(one_by_one) is None  # a smaller request does not help
    change = next(change for change in one_by_one if change is not None)
    assert change.text_for("team/x") == "if team/x ended it would run"


def test_job_that_does_not_exist() -> None:
    """No changes are tried for a job that does not exist."""
    assert what_would_help(Snapshot((), (), (Job("x", "a", ()),)), cluster([], {}).policy, 0, "j") == []
