"""Fixtures for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli.environment import CliEnvironment
from support.cli.pod_server import PodServer


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliEnvironment:
    for name in ("ALIQUOT_URL", "ALIQUOT_TOKEN", "ALIQUOT_TOKEN_FILE", "ALIQUOT_DATA_DIR", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    return CliEnvironment(tmp_path)


@pytest.fixture
def server(cli: CliEnvironment) -> Iterator[PodServer]:
    """A server for the store of `cli`, with a project `team-a` and a job `x`."""
    cli.create_project("team-a")
    cli.run_runai("config project team-a")
    cli.run_runai("submit x -i python -g 1")
    pod_server = PodServer(cli.driver)
    with pod_server.serving():
        yield pod_server


@pytest.fixture
def project_yaml() -> Callable[..., str]:
    """Returns the manifest of a project."""

    def text(name: str = "team-a", **spec: Any) -> str:
        lines = ["apiVersion: aliquot.dev/v1", "kind: Project", f"metadata: {{name: {name}}}", "spec:"]
        return (
            "\n".join([*lines, *(f"  {key}: {value}" for key, value in (spec or {"description": "x"}).items())]) + "\n"
        )

    return text
