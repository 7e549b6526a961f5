"""`aliquot explain` and `aliquot simulate --from-cluster` against a real platform with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.wire import Api, named, until
from support.stores.process import ServerProcess

SLEEP = {"type": "training", "image": "ubuntu", "command": ["sleep"], "args": ["infinity"]}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two nodes of eight GPUs: `large` has one of them, `whole` the other, and `third` waits."""
    folder = tmp_path_factory.mktemp("explain") / "data"
    server = ServerProcess(folder, "--simulate", "demo").start()
    try:
        _fill(server)
        yield server
    finally:
        subprocess.run(_words(server, "down"), check=False, capture_output=True)
        server.stop()


def _fill(server: ServerProcess) -> None:
    api = Api(server.url, server.token)
    until(lambda: api.get("projects/team-d").json.get("status", {}).get("phase") == "Ready", "the project")
    for name, phase in (("large", "Running"), ("whole", "Running"), ("third", "Pending")):
        spec = {**SLEEP, "compute": {"gpu": 8}}
        api.post("namespaces/runai-team-d/workloads", named(name, spec)).ok(201)
        until(lambda name=name, phase=phase: _told(api, name, phase), f"{name} to be {phase}")
    api.close()


def _told(api: Api, name: str, phase: str) -> bool:
    status = api.get(f"namespaces/runai-team-d/workloads/{name}").ok().get("status", {})
    return status.get("phase") == phase and (phase == "Running" or bool(status.get("refusals")))


def _words(server: ServerProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "aliquot.cli.main", *words, "--data-dir", str(server.folder)]


def said(server: ServerProcess, *words: str) -> str:
    environment = {**os.environ, "RUNAI_CLI_CONFIG_PATH": str(server.folder)}
    done = subprocess.run(
        _words(server, *words), capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(server: ServerProcess, name: str) -> Any:
    return json.loads(said(server, "explain", name, "-p", "team-d", "--json"))


def test_why_it_waits(platform: ServerProcess) -> None:
    """Its reasons, its place, and whose end would let it run."""
    told = said(platform, "explain", "third", "-p", "team-d")
    assert told.startswith("third of project team-d waits, for ")
    assert "\nWhy it waits:\n  allocate: 8 GPUs fit on no node now: 2 nodes with no GPU free.\n" in told
    assert "\nIt is number 1 of 1 that wait in project team-d.\n" in told
    assert "\n  If team-d/large ended it would run.\n" in told


def test_the_reasons_are_those_of_the_status(platform: ServerProcess) -> None:
    """Explanation, status and description say the same."""
    api = Api(platform.url, platform.token)
    status = api.get("namespaces/runai-team-d/workloads/third").ok()["status"]
    api.close()
    told = asked(platform, "third")
    assert [(one["step"], one["text"]) for one in told["refusals"]] == [
        (one["step"], one["text"]) for one in status["refusals"]
    ]


def test_one_that_runs(platform: ServerProcess) -> None:
    """Where it runs, and that its project borrows."""
    told = asked(platform, "large")
    assert (told["state"], told["overQuota"]) == ("running", True)
    assert [len(pod["devices"]) for pod in told["pods"]] == [8]


def test_the_file_decides_the_same(platform: ServerProcess, tmp_path: Path) -> None:
    """What was written is played, and says of the job that waits what the platform says of it."""
    path = tmp_path / "now.yaml"
    said(platform, "simulate", "--from-cluster", str(path))
    result = json.loads(said(platform, "simulate", str(path)))
    told = asked(platform, "third")["refusals"]
    again = result["rounds"][0]["refusals"]["runai-team-d/third"]
    assert [one["text"] for one in again] == [one["text"] for one in told]
    assert result["stable"] is True
