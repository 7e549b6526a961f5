"""What would let a waiting job run: nothing is said that was not tried."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Job, Snapshot, plan
from aliquot.planner.reasons.what_if import trials, what_would_help
from support.planner import World, cluster, gpus, quota


def helps(world: World, name: str) -> list[str]:
    return [claim.text for claim in what_would_help(world.snapshot(), world.policy, world.now, name, world.plan())]


def without(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.name != name))


def test_somebodys_end() -> None:
    """A claim that somebody's end would help holds."""
    world = cluster([gpus(2)], {"a": quota(2)}).running("x", "n1", [0, 1], gpu=2).pending("j", gpu=1)
    assert helps(world, "j") == ["if x ended it would run"]
    changed = without(world.snapshot(), "x")
    assert [bind.job for bind in plan(changed, world.policy, world.now).binds] == ["j"]


def test_a_minimum_run_time_ends() -> None:
    """Where only time is in the way, the moment is told, and it is the right one."""
    world = cluster([gpus(1)], {"a": quota(0, reclaim_min_runtime=300.0), "b": quota(1)})
    world.running("x", "n1", [0], started=world.now - 100).pending("j", "b", gpu=1)
    claim = what_would_help(world.snapshot(), world.policy, world.now, "j")[0]
    assert (claim.kind, claim.until) == ("later", world.now + 200)
    assert not plan(world.snapshot(), world.policy, world.now + 199).nominations
    assert plan(world.snapshot(), world.policy, world.now + 200).nominations


def test_what_can_never_fit() -> None:
    """Nobody's end is tried for a job that fits no node; less would do."""
    world = cluster([gpus(2)], {"a": quota(9)}).running("x", "n1", [0]).pending("j", gpu=3)
    assert helps(world, "j") == ["with 1 GPU instead of 3 GPUs it would run now"]


def test_above_a_limit_for_good() -> None:
    """A job larger than its project's limit is helped by a larger limit."""
    world = cluster([gpus(4)], {"a": quota(2, limit=2)}).pending("j", gpu=3)
    assert "with a limit of 3 GPUs for a (2 GPUs now) it would run now" in helps(world, "j")


def test_who_runs_needs_no_help() -> None:
    """Nothing is tried for a job that starts."""
    world = cluster([gpus(1)], {"a": quota(1)}).pending("j", gpu=1)
    assert list(trials(world.snapshot(), world.policy, world.now, "j")) == []


def test_one_trial_at_a_time() -> None:
    """Whoever has no time left may stop between two plans."""
    world = cluster([gpus(2)], {"a": quota(2)}).running("x", "n1", [0, 1], gpu=2).pending("j", gpu=2)
    one_by_one = trials(world.snapshot(), world.policy, world.now, "j", world.plan())
    assert next(one_by_one) is None  # more quota, say, would not do
    claim = next(claim for claim in one_by_one if claim is not None)
    assert claim.text_for("team/x") == "if team/x ended it would run"


def test_a_job_that_is_not_there() -> None:
    """Nothing is said of a job that does not exist."""
    assert what_would_help(Snapshot((), (), (Job("x", "a", ()),)), cluster([], {}).policy, 0, "j") == []
