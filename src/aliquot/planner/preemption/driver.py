"""Steps 3 to 5: places for those who wait, at the expense of others.

The same walk for all three: whose turn it is asks, what cannot work is refused by counting, and what may work is given
to the solver.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.placement.starvation import open_to
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.rules import Consolidate, Preempt, Reclaim, Rule
from aliquot.planner.preemption.solver import Solver
from aliquot.planner.queues.queue_order import Batch, QueueOrder

RULES: dict[str, type[Rule]] = {rule.step: rule for rule in (Consolidate, Reclaim, Preempt)}


def make_room(state: CycleState, batches: Sequence[Batch], step: str, builder: PlanBuilder) -> list[Batch]:
    """Returns who still waits."""
    waiting: list[Batch] = []
    failed: set[object] = set()  # what was asked for in vain, also by other queues where that makes no difference
    turns = QueueOrder(batches, state.placer.next_request)
    while batch := turns.pop():
        with open_to(state, batch.head):
            if not _asks(state, batch, step, turns, failed, builder):
                waiting.append(batch)
    return waiting


def _asks(
    state: CycleState, batch: Batch, step: str, turns: QueueOrder, failed: set[object], builder: PlanBuilder
) -> bool:
    """Whether the first of a batch gets what it asks for."""
    placer, job = state.placer, batch.head
    why: str | None = None
    rule: Rule | None = None
    for members in job.options() if job.source.subgroups else (job.next_tasks(),):
        rule = RULES[step](state, job, placer.requested(members))
        why = refused(state, rule)
        key = (rule.scope, state.signature(job, members))
        if why is None and key not in failed:
            stopped = Solver(state, rule).solve(members)
            if stopped is not None:
                failed.clear()
                builder.evict(stopped, job, step)
                for queue in {member.job.queue: None for member in stopped}:
                    turns.touch(queue)
                turns.advance(batch)
                return True
            failed.add(key)
    if rule is not None and why != "quota":  # which was told already
        builder.note(state, batch, step, why or "no-arrangement", rule)
    return False


def refused(state: CycleState, rule: Rule) -> str | None:
    """Why no search is worth while; None if one is."""
    job = rule.job.source
    if job.preemption_delay and state.now < job.created + job.preemption_delay:
        return "preemption-delay"
    return rule.refusal(state.victims)
