"""`delete`, `suspend` and `resume` of jobs."""

from __future__ import annotations

import pytest

from support.cli.environment import CliEnvironment


@pytest.fixture
def team(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("team-a")
    cli.run_runai("config project team-a")
    for name in ("a", "b", "c"):
        cli.run_runai(f"submit {name} -i python")
    return cli


def _names(team: CliEnvironment) -> list[str]:
    return sorted(team.run_runai("list -o name").split())


@pytest.mark.parametrize(
    "line", ["delete a", "delete job a", "delete workload a", "delete job/a", "delete a -p team-a"]
)
def test_delete(team: CliEnvironment, line: str) -> None:
    assert team.run_runai(line) == "Job a deleted successfully.\n"
    assert _names(team) == ["b", "c"]


def test_delete_goes_on_after_a_failure(team: CliEnvironment) -> None:
    """The other jobs are deleted, and the exit status is 1."""
    result = team.invoke_runai("delete a nobody c")
    assert (result.exit_code, result.stdout.count("successfully")) == (1, 2)
    assert "job 'nobody' does not exist in project 'team-a'" in result.stderr
    assert _names(team) == ["b"]


def test_delete_all(team: CliEnvironment) -> None:
    assert team.run_runai("delete -A").count("deleted") == 3
    assert team.invoke_runai("delete --all").stderr == "No jobs in project team-a.\n"


@pytest.mark.parametrize("line", ["delete", "delete a -A", "suspend", "resume"])
def test_which_jobs(team: CliEnvironment, line: str) -> None:
    assert team.invoke_runai(line).exit_code == 2


def test_delete_of_other_kinds(team: CliEnvironment) -> None:
    """With a kind as first argument it works like `aliquot delete`."""
    team.create("department", "ml")
    assert team.run_runai("delete department ml -y") == "department/ml deleted\n"
    team.run_runai("submit department -i python")
    assert team.run_runai("delete department") == "Job department deleted successfully.\n"


def test_suspend_and_resume(team: CliEnvironment) -> None:
    assert team.run_runai("suspend a b").splitlines() == [f"Job {name} suspended successfully." for name in ("a", "b")]
    assert team.get("workload", "a", "runai-team-a")["spec"]["active"] is False
    assert [line.split()[1] for line in team.run_runai("list jobs").splitlines()[2:]] == [
        "Suspended",
        "Suspended",
        "Pending",
    ]
    assert team.run_runai("resume job a") == "Job a resumed successfully.\n"
    assert "active" not in team.get("workload", "a", "runai-team-a")["spec"]


def test_jobs_that_cannot_be_suspended(team: CliEnvironment) -> None:
    team.run_runai("submit-mpi m -i python --workers 2")
    assert "cannot be suspended" in team.invoke_runai("suspend m").stderr
    team.set_status("workload", "a", "runai-team-a", phase="Completed")
    result = team.invoke_runai("suspend a")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: job 'a' has ended (Completed): there is nothing to suspend\n",
    )
