"""`simulate --from-cluster`: what the live scheduler sees, as a file that `simulate` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aliquot.scheduler.last_decision import Decision
from support.cli.environment import CliEnvironment
from support.planner import cluster, gpus, quota


@pytest.fixture
def busy(cli: CliEnvironment) -> CliEnvironment:
    """A scheduler that has just looked at a node of two GPUs, one of them in use, and a job that waits for two."""
    seen = cluster([gpus(2)], {"team-a": quota(1)})
    seen.running("runai-team-a/one", "n1", [0], "team-a").pending("runai-team-a/waits", "team-a", gpu=2)
    cli.driver.decision = Decision(seen.snapshot(), seen.policy, {}, seen.now, seen.plan())
    return cli


def test_played_again(busy: CliEnvironment, tmp_path: Path) -> None:
    """The file that is written can be played at once, and decides what was decided."""
    path = tmp_path / "cluster.yaml"
    assert busy.run("simulate", "--from-cluster", str(path)) == ""
    result = json.loads(busy.run("simulate", str(path)))
    assert {name: each["state"] for name, each in result["final"]["workloads"].items()} == {
        "runai-team-a/one": "running",
        "runai-team-a/waits": "pending",
    }
    decision = busy.driver.decision
    assert decision is not None
    texts = [reason["text"] for reason in result["rounds"][0]["refusals"]["runai-team-a/waits"]]
    assert texts == [reason.text for reason in decision.plan.refusals["runai-team-a/waits"]]


def test_without_a_file(busy: CliEnvironment) -> None:
    """Without a name it goes to standard output, where another command may read it."""
    text = busy.run("simulate", "--from-cluster")
    assert json.loads(busy.run("simulate", "-", input=text))["final"]["workloads"]


def test_file_is_not_overwritten(busy: CliEnvironment, tmp_path: Path) -> None:
    """A file that is there is left alone."""
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    result = busy.invoke("simulate", "--from-cluster", str(path))
    assert result.exit_code == 1
    assert path.read_text() == "mine"


def test_no_scheduler(cli: CliEnvironment) -> None:
    """A server that schedules nothing says so in a line."""
    result = cli.invoke("simulate", "--from-cluster")
    assert (result.exit_code, result.stderr) == (1, "error: no scheduler runs in this process\n")
