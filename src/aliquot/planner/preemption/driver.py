"""Steps 3 to 5: consolidate, reclaim and preempt make room for waiting jobs.

The three steps run alike. Jobs ask in queue order, a precheck refuses by counting what cannot work, and the rest is
left to a search for victims. `Policy.victims` selects the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import TaskSlot
from aliquot.planner.placement.starvation import reservation_lifted
from aliquot.planner.plan_builder import PlanBuilder
from aliquot.planner.preemption.least_disruption import LeastDisruption
from aliquot.planner.preemption.newest_first import NewestFirst
from aliquot.planner.preemption.rules import Consolidate, Preempt, Reclaim, Rule
from aliquot.planner.preemption.search import VictimStrategy
from aliquot.planner.queues.queue_order import Batch, QueueOrder

RULES: dict[str, type[Rule]] = {rule.step: rule for rule in (Consolidate, Reclaim, Preempt)}


def make_room(state: CycleState, batches: Sequence[Batch], step: str, builder: PlanBuilder) -> list[Batch]:
    """Runs one of the three steps. Returns the batches that still wait."""
    strategy: VictimStrategy = NewestFirst(state) if state.policy.victims == "newest" else LeastDisruption(state)
    waiting: list[Batch] = []
    # Requests for which a search failed. Equal requests of the same scope fail, too, until something is evicted.
    failed: set[object] = set()
    queue_order = QueueOrder(batches, state.placer.next_request)
    while batch := queue_order.pop():
        with reservation_lifted(state, batch.head) if strategy.uses_reservation else nullcontext():
            victims = _find_victims(state, strategy, batch, step, failed, builder)
        if victims is None:
            waiting.append(batch)
            continue
        failed.clear()
        builder.evict(victims, batch.head, step)
        for queue in {victim.job.queue: None for victim in victims}:
            queue_order.touch(queue)
        queue_order.advance(batch, again=strategy.regrows)
    return waiting


def _find_victims(
    state: CycleState,
    strategy: VictimStrategy,
    batch: Batch,
    step: str,
    failed: set[object],
    builder: PlanBuilder,
) -> list[TaskSlot] | None:
    """Places the first job of a batch. Returns its victims, or None after recording why it was refused."""
    job = batch.head
    rule: Rule | None = None
    reason: str | None = None
    for tasks in strategy.options(job):
        rule = RULES[step](state, job, state.placer.requested(tasks))
        reason = strategy.precheck(rule)
        if reason is not None:
            continue
        key = (rule.scope, state.signature(job, tasks))
        if key not in failed:
            victims = strategy.search(rule).solve(tasks)
            if victims is not None:
                return victims
            failed.add(key)
    if rule is not None and (reason != "quota" or strategy.repeats_quota):
        builder.record_obstacle(state, batch, step, reason or "no-arrangement", rule)
    return None
