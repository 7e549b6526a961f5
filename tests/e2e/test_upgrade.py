"""State that an earlier version wrote is served by this one."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.seeds.platform import PREFIX, Platform

RECORDED = Path(__file__).parents[1] / "data" / "upgrade"
# What the server sets while it runs: versions count writes, and the status follows the pods.
MOVING = ("resourceVersion", "managedFields")


def stable(item: Any) -> Any:
    """What no restart may change: everything but the status and the version."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in MOVING}
    return {**{key: value for key, value in item.items() if key != "status"}, "metadata": metadata}


@pytest.fixture
def upgraded(programs: Path, tmp_path: Path) -> Any:
    platform = Platform(programs, tmp_path / "platform", "--simulate", "demo")
    with tarfile.open(RECORDED / "embedded.tar.gz") as archive:
        archive.extractall(platform.server.folder, filter="data")
    yield platform.up()
    platform.down()


def test_a_data_folder_of_an_earlier_version_is_served(upgraded: Platform) -> None:
    """Every object is there unchanged; finished jobs keep their logs; jobs that ran are started again."""
    recorded = json.loads((RECORDED / "embedded.json").read_text())

    for plural, items in recorded.items():
        served = {item["metadata"]["uid"]: item for item in upgraded.ask(f"{PREFIX}/{plural}")["items"]}
        for item in items:
            assert stable(served[item["metadata"]["uid"]]) == stable(item)

    upgraded.reaches("train1", "team-a", "Running")
    upgraded.reaches("half", "team-a", "Running")
    upgraded.reaches("int1", "team-b", "Running")
    assert upgraded.phase("wide", "team-a") == "Pending"
    assert upgraded.phase("parked", "team-b") == "Stopped"
    assert upgraded.phase("ended", "team-a") == "Completed"
    assert upgraded.sh("runai logs ended -p team-a").out == "hello\n"
    refusals = upgraded.job("wide", "team-a")["status"]["refusals"]
    before = next(item for item in recorded["workloads"] if item["metadata"]["name"] == "wide")["status"]["refusals"]
    assert [refusal["code"] for refusal in refusals] == [refusal["code"] for refusal in before]
