"""Fixtures: the wheel, installed once per run, and platforms that run from it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs.console import ROOT
from support.seeds.platform import Platform
from support.seeds.tmux import PROMPT, Screen, needs_tmux


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of our programs in a virtual environment with only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = _run(str(ROOT / "tools" / "uv.sh"))
    _run(uv, "build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"), str(ROOT))
    (wheel,) = (folder / "dist").glob("*.whl")
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    _run(uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), str(wheel))
    return python.parent


def _run(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A platform of its own for one test, run by the environment of the tests instead of the wheel."""
    own = Platform(Path(sys.executable).parent, tmp_path / "platform").up()
    yield own
    own.down()


@pytest.fixture
def fresh(programs: Path, tmp_path: Path) -> Iterator[Platform]:
    """A new platform."""
    platform = Platform(programs, tmp_path / "platform").up()
    yield platform
    platform.down()


@pytest.fixture(scope="session")
def demo(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that several tests share; each uses its own job names."""
    platform = Platform(programs, tmp_path_factory.mktemp("demo") / "platform").up()
    assert platform.sh("runai project set team-a").status == 0
    yield platform
    platform.down()


@pytest.fixture
def screen(demo: Platform) -> Iterator[Screen]:
    """A terminal with a shell for the shared platform."""
    needs_tmux()
    opened = Screen(demo.environment, demo.home)
    try:
        opened.shows(PROMPT.rstrip())
        yield opened
    finally:
        opened.close()
