"""`explain JOB`."""

from __future__ import annotations

import json

import pytest

from support.cli.environment import CliEnvironment

LINES = [
    ("state", "big of project team-a waits."),
    ("why", "allocate: full."),
    ("why", "reclaim: nothing."),
    ("place", "It is number 1 of 1."),
    ("help", "If x ended it would run."),
]


@pytest.fixture
def pending_job(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("team-a")
    cli.create("workload", "big", "runai-team-a", spec={"type": "training", "image": "x"})
    lines = [{"about": about, "text": text} for about, text in LINES]
    cli.driver.explanation = {"workload": "big", "state": "waiting", "lines": lines}
    return cli


def test_text(pending_job: CliEnvironment) -> None:
    """Reasons and remedies are printed under titles, other lines without one."""
    assert pending_job.run("explain", "big", "-p", "team-a") == (
        "big of project team-a waits.\n"
        "Why it waits:\n  allocate: full.\n  reclaim: nothing.\n"
        "It is number 1 of 1.\n"
        "What would let it run:\n  If x ended it would run.\n"
    )


@pytest.mark.parametrize("form", ["--json", "--yaml"])
def test_as_data(pending_job: CliEnvironment, form: str) -> None:
    """--json and --yaml print the answer of the server."""
    text = pending_job.run("explain", "big", "-p", "team-a", form)
    if form == "--json":
        assert json.loads(text) == pending_job.driver.explanation
    else:
        assert "state: waiting\n" in text


def test_default_project(pending_job: CliEnvironment) -> None:
    """Without -p the command uses the default project."""
    pending_job.run("project", "set", "team-a")
    assert pending_job.run("explain", "big").startswith("big of project")


def test_unknown_job(pending_job: CliEnvironment) -> None:
    """A job that does not exist gives one line and a hint."""
    result = pending_job.invoke("explain", "bog", "-p", "team-a")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: job 'bog' does not exist in project 'team-a'\nhint: `runai list -A` shows all jobs\n"
    )


def test_no_scheduler(pending_job: CliEnvironment) -> None:
    """A server without a scheduler gives an error in one line."""
    pending_job.driver.explanation = None
    result = pending_job.invoke("explain", "big", "-p", "team-a")
    assert (result.exit_code, result.stderr) == (1, "error: no scheduler runs in this process\n")
