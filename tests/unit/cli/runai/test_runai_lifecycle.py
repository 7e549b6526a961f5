"""`delete`, `suspend` and `resume`: one line for each job."""

from __future__ import annotations

import pytest

from support.cli.world import World


@pytest.fixture
def team(world: World) -> World:
    world.project("team-a")
    world.said("config project team-a")
    for name in ("a", "b", "c"):
        world.said(f"submit {name} -i python")
    return world


def _names(team: World) -> list[str]:
    return sorted(team.said("list -o name").split())


@pytest.mark.parametrize(
    "line", ["delete a", "delete job a", "delete workload a", "delete job/a", "delete a -p team-a"]
)
def test_delete(team: World, line: str) -> None:
    assert team.said(line) == "Job a deleted successfully.\n"
    assert _names(team) == ["b", "c"]


def test_delete_goes_on_after_a_failure(team: World) -> None:
    """The others are deleted; the exit status tells."""
    result = team.runai("delete a nobody c")
    assert (result.exit_code, result.stdout.count("successfully")) == (1, 2)
    assert "job 'nobody' does not exist in project 'team-a'" in result.stderr
    assert _names(team) == ["b"]


def test_delete_all(team: World) -> None:
    assert team.said("delete -A").count("deleted") == 3
    assert team.runai("delete --all").stderr == "No jobs in project team-a.\n"


@pytest.mark.parametrize("line", ["delete", "delete a -A", "suspend", "resume"])
def test_which_jobs(team: World, line: str) -> None:
    assert team.runai(line).exit_code == 2


def test_delete_of_other_kinds(team: World) -> None:
    """With the word of the kind first, as `aliquot delete`."""
    team.put("department", "ml")
    assert team.said("delete department ml -y") == "department/ml deleted\n"
    team.said("submit department -i python")
    assert team.said("delete department") == "Job department deleted successfully.\n"


def test_suspend_and_resume(team: World) -> None:
    assert team.said("suspend a b").splitlines() == [f"Job {name} suspended successfully." for name in ("a", "b")]
    assert team.get("workload", "a", "runai-team-a")["spec"]["active"] is False
    assert [line.split()[1] for line in team.said("list jobs").splitlines()[2:]] == [
        "Suspended",
        "Suspended",
        "Pending",
    ]
    assert team.said("resume job a") == "Job a resumed successfully.\n"
    assert "active" not in team.get("workload", "a", "runai-team-a")["spec"]


def test_what_cannot_be_suspended(team: World) -> None:
    team.said("submit-mpi m -i python --workers 2")
    assert "cannot be suspended" in team.runai("suspend m").stderr
    team.told("workload", "a", "runai-team-a", phase="Completed")
    result = team.runai("suspend a")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: job 'a' has ended (Completed): there is nothing to suspend\n",
    )
