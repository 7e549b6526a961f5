"""The three fairness tests of the customer's document, with real job processes.

The platform runs from this environment and not from the installed wheel: the first job is a notebook, which needs the
extra `notebook`.
"""

from __future__ import annotations

import re

import pytest

from support.seeds.fairness_run import run_fairness_steps, team_of
from support.seeds.fairness_steps import EVICTED, FAIRNESS_STEPS, OVER_QUOTA_FAIRNESS_STEPS, OVER_QUOTA_STEPS
from support.seeds.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("seeds")


def check_resumed(platform: Platform) -> None:
    """Evicted jobs resume from their checkpoint."""
    for job in EVICTED:
        wait_until(lambda job=job: "Epoch" in _log(platform, job), f"{job} trains")  # type: ignore[misc]
        first = _log(platform, job).splitlines()[0]
        match = re.fullmatch(r"Resumed from \S+: epoch (\d+), step (\d+)", first)
        assert match, first
        # The job saves in the middle of an epoch only when it is asked to stop.
        assert (int(match[1]), int(match[2])) > (1, 0)


def _log(platform: Platform, job: str) -> str:
    return platform.sh(f"runai logs {job} -p {team_of(job)}").out


def test_fairness(platform: Platform) -> None:
    """Jobs over quota are evicted for jobs within quota, and no others; free GPUs are shared by quota."""
    run_fairness_steps(platform, lambda: None, platform.job_instances)
    check_resumed(platform)
    assert "Traceback" not in platform.server.log


def test_fairness_with_kills(platform: Platform) -> None:
    """The result is the same when the platform is killed right after each command."""
    run_fairness_steps(platform, platform.kill, platform.job_instances)
    check_resumed(platform)
    assert platform.server.starts == len(OVER_QUOTA_STEPS + FAIRNESS_STEPS + OVER_QUOTA_FAIRNESS_STEPS) + 1
    assert "Traceback" not in platform.server.log
