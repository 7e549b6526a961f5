"""`aliquot explain` and `aliquot simulate --from-cluster` against a real platform with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from api.http_client import Api, named
from support.stores.process import ServerProcess
from support.waiting import wait_until

SLEEP = {"type": "training", "image": "ubuntu", "command": ["sleep"], "args": ["infinity"]}


@pytest.fixture(scope="module")
def full_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two nodes of eight GPUs: `large` holds one of them, `whole` the other, and `third` waits."""
    folder = tmp_path_factory.mktemp("explain") / "data"
    server = ServerProcess(folder, "--simulate", "demo").start()
    try:
        _fill(server)
        yield server
    finally:
        subprocess.run(_command(server, "down"), check=False, capture_output=True)
        server.stop()


def _fill(server: ServerProcess) -> None:
    api = Api(server.url, server.token)
    wait_until(lambda: api.get("projects/team-d").json.get("status", {}).get("phase") == "Ready", "the project")
    for name, phase in (("large", "Running"), ("whole", "Running"), ("third", "Pending")):
        spec = {**SLEEP, "compute": {"gpu": 8}}
        api.post("namespaces/runai-team-d/workloads", named(name, spec)).ok(201)
        wait_until(partial(_has_phase, api, name, phase), f"{name} to be {phase}")
    api.close()


def _has_phase(api: Api, name: str, phase: str) -> bool:
    status = api.get(f"namespaces/runai-team-d/workloads/{name}").ok().get("status", {})
    return status.get("phase") == phase and (phase == "Running" or bool(status.get("refusals")))


def _command(server: ServerProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "aliquot.cli.main", *words, "--data-dir", str(server.folder)]


def output_of(server: ServerProcess, *words: str) -> str:
    environment = {**os.environ, "RUNAI_CLI_CONFIG_PATH": str(server.folder)}
    completed = subprocess.run(
        _command(server, *words), capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def explanation_of(server: ServerProcess, name: str) -> Any:
    return json.loads(output_of(server, "explain", name, "-p", "team-d", "--json"))


def test_why_it_waits(full_platform: ServerProcess) -> None:
    """The refusals, the queue position, and the job whose end would let it run."""
    text = output_of(full_platform, "explain", "third", "-p", "team-d")
    assert text.startswith("third of project team-d waits, for ")
    assert "\nWhy it waits:\n  allocate: no node has room for 8 GPUs now: 2 nodes with no GPU free.\n" in text
    assert "\nIt is number 1 of 1 that wait in project team-d.\n" in text
    assert "\n  If team-d/large ended it would run.\n" in text


def test_same_refusals_as_the_status(full_platform: ServerProcess) -> None:
    """The explanation has the refusals of the workload's status."""
    api = Api(full_platform.url, full_platform.token)
    status = api.get("namespaces/runai-team-d/workloads/third").ok()["status"]
    api.close()
    explained = explanation_of(full_platform, "third")["refusals"]
    shown = status["refusals"]
    assert [(refusal["step"], refusal["text"]) for refusal in explained] == [
        (refusal["step"], refusal["text"]) for refusal in shown
    ]


def test_running_job(full_platform: ServerProcess) -> None:
    """Where it runs, and that its project is over quota."""
    explained = explanation_of(full_platform, "large")
    assert (explained["state"], explained["overQuota"]) == ("running", True)
    assert [len(pod["devices"]) for pod in explained["pods"]] == [8]


def test_exported_scenario(full_platform: ServerProcess, tmp_path: Path) -> None:
    """The exported scenario gives the waiting job the same refusals as the platform."""
    path = tmp_path / "now.yaml"
    output_of(full_platform, "simulate", "--from-cluster", str(path))
    result = json.loads(output_of(full_platform, "simulate", str(path)))
    live = explanation_of(full_platform, "third")["refusals"]
    simulated = result["rounds"][0]["refusals"]["runai-team-d/third"]
    assert [refusal["text"] for refusal in simulated] == [refusal["text"] for refusal in live]
    assert result["stable"] is True
