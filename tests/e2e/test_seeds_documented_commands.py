"""The customer's first commands, word for word, on the demo cluster that the installed wheel serves."""

from __future__ import annotations

import re

import pytest

from support.seeds.documented_commands import DOCUMENTED_COMMANDS, Step, play
from support.seeds.platform import CommandResult, JobInstance, Platform

pytestmark = pytest.mark.xdist_group("seeds")


def check(step: Step, done: CommandResult) -> None:
    wanted = done.out if step.out is None else step.out
    assert (step.command, done) == (step.command, CommandResult(step.status, wanted, step.err))
    # Each line of `holds` after the one before it; others may stand between.
    lines = iter(done.out.splitlines())
    for pattern in step.holds:
        assert any(re.fullmatch(pattern, line) for line in lines), f"{step.command}: no {pattern!r} in\n{done.out}"


def test_session(fresh: Platform) -> None:
    """Whoever types what the documents print sees what they show."""
    for step in DOCUMENTED_COMMANDS:
        check(step, play(fresh, step))
    assert fresh.job_instances() == {}


def test_session_with_kills(fresh: Platform) -> None:
    """With the platform killed between any two commands they print the same, and every job runs on as it was."""
    before: dict[str, JobInstance] = {}
    for step in DOCUMENTED_COMMANDS:
        check(step, play(fresh, step))
        # Also what has just begun: it has its first kill before it.
        lived = {name: life for name, life in before.items() if name not in step.ends}
        before = lived | fresh.job_instances(but=step.ends)
        assert {name: before[name] for name in lived} == lived, step.command
        fresh.kill()
        now = fresh.job_instances(but=step.ends)
        assert {name: now.get(name) for name in before} == before, step.command
        assert all(life.restarts == 0 for life in now.values()), now
        before = now
    assert fresh.server.starts == len(DOCUMENTED_COMMANDS) + 1
    assert "Traceback" not in fresh.server.log
