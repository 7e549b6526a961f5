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
def asked(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("team-a")
    cli.create("workload", "big", "runai-team-a", spec={"type": "training", "image": "x"})
    lines = [{"about": about, "text": text} for about, text in LINES]
    cli.driver.explanation = {"workload": "big", "state": "waiting", "lines": lines}
    return cli


def test_sentences_under_titles(asked: CliEnvironment) -> None:
    """Reasons and ways out have a title each; the rest speaks for itself."""
    assert asked.run("explain", "big", "-p", "team-a") == (
        "big of project team-a waits.\n"
        "Why it waits:\n  allocate: full.\n  reclaim: nothing.\n"
        "It is number 1 of 1.\n"
        "What would let it run:\n  If x ended it would run.\n"
    )


@pytest.mark.parametrize("form", ["--json", "--yaml"])
def test_as_data(asked: CliEnvironment, form: str) -> None:
    """Programs get what the server said."""
    text = asked.run("explain", "big", "-p", "team-a", form)
    if form == "--json":
        assert json.loads(text) == asked.driver.explanation
    else:
        assert "state: waiting\n" in text


def test_default_project(asked: CliEnvironment) -> None:
    """Without -p it is the user's own project."""
    asked.run("project", "set", "team-a")
    assert asked.run("explain", "big").startswith("big of project")


def test_unknown_job(asked: CliEnvironment) -> None:
    """A job that does not exist is said in a line, with what to do."""
    result = asked.invoke("explain", "bog", "-p", "team-a")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: job 'bog' does not exist in project 'team-a'\nhint: `runai list -A` shows all jobs\n"
    )


def test_no_scheduler(asked: CliEnvironment) -> None:
    """A server that schedules nothing says so in a line."""
    asked.driver.explanation = None
    result = asked.invoke("explain", "big", "-p", "team-a")
    assert (result.exit_code, result.stderr) == (1, "error: no scheduler runs in this process\n")
