"""Steps 3 to 5: places for those who wait, at the expense of others.

The same walk for all three: whose turn it is asks, what cannot work is refused by counting, and what may work is given
to the solver. What failed once is not tried again for a job that asks for the same, until something has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.core.jobs import JobState, Member
from aliquot.core.outcome import Outcome
from aliquot.core.rules import Consolidate, Preempt, Reclaim, Rule
from aliquot.core.scene import Scene
from aliquot.core.solver import Solver
from aliquot.core.turns import Turns

RULES: dict[str, type[Rule]] = {rule.step: rule for rule in (Consolidate, Reclaim, Preempt)}


def displace(scene: Scene, jobs: Sequence[JobState], step: str, outcome: Outcome) -> list[JobState]:
    """Returns who still waits."""
    placer = scene.placer
    waiting: list[JobState] = []
    failed: set[object] = set()
    turns = Turns(jobs, placer.asks)
    while job := turns.pop():
        why: str | None = None
        rule: Rule | None = None
        for members in job.options() if job.source.groups else (job.next_tasks(),):
            rule = RULES[step](scene, job, placer.asked(members))
            why = refused(scene, rule)
            key = (rule.scope, *signature(scene, job, members))
            if why is None and key not in failed:
                stopped = Solver(scene, rule).solve(members)
                if stopped is not None:
                    failed.clear()
                    outcome.stop(stopped, job, step)
                    _touch(turns, job, stopped)
                    break
                failed.add(key)
        else:
            if rule is not None and why != "gate":  # which was told already
                outcome.note(job, step, why or "no-arrangement", rule)
            waiting.append(job)
    return waiting


def _touch(turns: Turns, job: JobState, stopped: Sequence[Member]) -> None:
    turns.touch(job.queue)
    for queue in {member.job.queue: None for member in stopped}:
        turns.touch(queue)
    if len(job.members) > 1 and job.next_tasks():
        turns.push(job)


def signature(scene: Scene, job: JobState, members: Sequence[Member]) -> tuple[object, ...]:
    """What makes two requests alike."""
    source = job.source
    kinds = tuple(scene.placer.kind(member).id for member in members)
    if source.groups or source.closeness is not None:
        return (kinds, source.closeness, source.groups, source.name if job.present else "")
    return (kinds, job.fixed)


def refused(scene: Scene, rule: Rule) -> str | None:
    """Why no search is worth while; None if one is."""
    job = rule.job.source
    if job.preemption_delay and scene.now < job.created + job.preemption_delay:
        return "preemption-delay"
    return rule.refusal(scene.tenants)
