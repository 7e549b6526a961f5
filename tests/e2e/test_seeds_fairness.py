"""The customer's three tests of fairness, by the commands of the document, with processes that really run.

From this environment and not from the bare wheel: the first job is a notebook, which needs the extra `notebook`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.seeds.fairness_run import run_fairness_steps, team_of
from support.seeds.fairness_steps import EVICTED, FILLING, RETURNING, SHARING
from support.seeds.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("seeds")


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(Path(sys.executable).parent, tmp_path / "platform").up()
    yield made
    made.down()


def resumed(platform: Platform) -> None:
    """Who was stopped goes on from its checkpoint."""
    for job in EVICTED:
        wait_until(lambda job=job: "Epoch" in _log(platform, job), f"{job} trains")  # type: ignore[misc]
        first = _log(platform, job).splitlines()[0]
        said = re.fullmatch(r"Resumed from \S+: epoch (\d+), step (\d+)", first)
        assert said, first
        # Between two epochs it saves nothing unless it is told to stop.
        assert (int(said[1]), int(said[2])) > (1, 0)


def _log(platform: Platform, job: str) -> str:
    return platform.sh(f"runai logs {job} -p {team_of(job)}").out


def test_sections(platform: Platform) -> None:
    """Whoever borrowed gives back and nobody else is touched; what is free again is shared by quota."""
    run_fairness_steps(platform, lambda: None, platform.job_instances)
    resumed(platform)
    assert "Traceback" not in platform.server.log


def test_sections_with_kills(platform: Platform) -> None:
    """The same when the platform is killed after each command, before it can have carried it out."""
    run_fairness_steps(platform, platform.kill, platform.job_instances)
    resumed(platform)
    assert platform.server.starts == len(FILLING + RETURNING + SHARING) + 1
    assert "Traceback" not in platform.server.log
