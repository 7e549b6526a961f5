"""`simulate --from-cluster`: the state of the live scheduler as a scenario file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aliquot.scheduler.last_decision import Decision
from support.cli.environment import CliEnvironment
from support.planner import cluster, gpus, quota


@pytest.fixture
def busy(cli: CliEnvironment) -> CliEnvironment:
    """A scheduler whose last decision saw a node with two GPUs, one of them in use, and a pending job for two."""
    scenario = cluster([gpus(2)], {"team-a": quota(1)})
    scenario.running("runai-team-a/one", "n1", [0], "team-a").pending("runai-team-a/waits", "team-a", gpu=2)
    cli.driver.decision = Decision(scenario.snapshot(), scenario.policy, {}, scenario.now, scenario.plan())
    return cli


def test_round_trip(busy: CliEnvironment, tmp_path: Path) -> None:
    """`simulate` reads the written file, and decides the same."""
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
    """Without a file name the scenario goes to stdout."""
    text = busy.run("simulate", "--from-cluster")
    assert json.loads(busy.run("simulate", "-", input=text))["final"]["workloads"]


def test_file_is_not_overwritten(busy: CliEnvironment, tmp_path: Path) -> None:
    """An existing file is not overwritten."""
    path = tmp_path / "old.yaml"
    path.write_text("old")
    result = busy.invoke("simulate", "--from-cluster", str(path))
    assert result.exit_code == 1
    assert path.read_text() == "old"


def test_no_scheduler(cli: CliEnvironment) -> None:
    """A server without a scheduler gives an error in one line."""
    result = cli.invoke("simulate", "--from-cluster")
    assert (result.exit_code, result.stderr) == (1, "error: no scheduler runs in this process\n")
