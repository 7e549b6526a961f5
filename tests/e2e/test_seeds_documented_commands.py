"""The first commands of the customer's documents, verbatim, on the demo cluster of the installed wheel."""

from __future__ import annotations

import re

import pytest

from support.seeds.documented_commands import DOCUMENTED_COMMANDS, Step, run_step
from support.seeds.platform import CommandResult, JobInstance, Platform

pytestmark = pytest.mark.xdist_group("seeds")


def check(step: Step, result: CommandResult) -> None:
    expected = result.out if step.out is None else step.out
    assert (step.command, result) == (step.command, CommandResult(step.status, expected, step.err))
    # The patterns must match in their order; there may be other lines between.
    lines = iter(result.out.splitlines())
    for pattern in step.lines:
        assert any(re.fullmatch(pattern, line) for line in lines), f"{step.command}: no {pattern!r} in\n{result.out}"


def test_documented_commands(fresh: Platform) -> None:
    """The commands of the documents print what the documents show."""
    for step in DOCUMENTED_COMMANDS:
        check(step, run_step(fresh, step))
    assert fresh.job_instances() == {}


def test_documented_commands_with_kills(fresh: Platform) -> None:
    """The output is the same when the platform is killed after each command, and every job keeps running."""
    before: dict[str, JobInstance] = {}
    for step in DOCUMENTED_COMMANDS:
        check(step, run_step(fresh, step))
        # Jobs that the step started are included: this is their first kill.
        kept = {name: instance for name, instance in before.items() if name not in step.ended_jobs}
        before = kept | fresh.job_instances(except_jobs=step.ended_jobs)
        assert {name: before[name] for name in kept} == kept, step.command
        fresh.kill()
        now = fresh.job_instances(except_jobs=step.ended_jobs)
        assert {name: now.get(name) for name in before} == before, step.command
        assert all(instance.restarts == 0 for instance in now.values()), now
        before = now
    assert fresh.server.starts == len(DOCUMENTED_COMMANDS) + 1
    assert "Traceback" not in fresh.server.log
