"""The customer's first commands, word for word, on the demo cluster that the installed wheel serves."""

from __future__ import annotations

import re

import pytest

from support.seeds.platform import Done, Life, Platform
from support.seeds.session import SESSION, Step, play

pytestmark = pytest.mark.xdist_group("seeds")


def check(step: Step, done: Done) -> None:
    wanted = done.out if step.out is None else step.out
    assert (step.command, done) == (step.command, Done(step.status, wanted, step.err))
    # Each line of `holds` after the one before it; others may stand between.
    lines = iter(done.out.splitlines())
    for pattern in step.holds:
        assert any(re.fullmatch(pattern, line) for line in lines), f"{step.command}: no {pattern!r} in\n{done.out}"


def test_session(fresh: Platform) -> None:
    """Whoever types what the documents print sees what they show."""
    for step in SESSION:
        check(step, play(fresh, step))
    assert fresh.lives() == {}


def test_session_with_kills(fresh: Platform) -> None:
    """With the platform killed between any two commands they print the same, and every job runs on as it was."""
    before: dict[str, Life] = {}
    for step in SESSION:
        check(step, play(fresh, step))
        # Also what has just begun: it has its first kill before it.
        lived = {name: life for name, life in before.items() if name not in step.ends}
        before = lived | fresh.lives(but=step.ends)
        assert {name: before[name] for name in lived} == lived, step.command
        fresh.kill()
        now = fresh.lives(but=step.ends)
        assert {name: now.get(name) for name in before} == before, step.command
        assert all(life.restarts == 0 for life in now.values()), now
        before = now
    assert fresh.server.starts == len(SESSION) + 1
    assert "Traceback" not in fresh.server.log
