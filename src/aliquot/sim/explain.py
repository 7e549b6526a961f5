"""Why a workload waits, or was stopped, in sentences. Everything said here stands in the plans that were made."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.errors import NotFound
from aliquot.planner import plan
from aliquot.planner.model import Job, Task, TaskState
from aliquot.planner.plan import Eviction
from aliquot.planner.queues.queue_position import queue_positions
from aliquot.planner.reasons.what_if import what_would_help
from aliquot.sim.player import Player
from aliquot.sim.world import because

_WAITS = (TaskState.PENDING, TaskState.GATED)


def knows(player: Player, name: str) -> bool:
    return name in player.names


def sentences(player: Player, name: str) -> list[str]:
    """What is to be said about a workload after the scenario was played."""
    if not knows(player, name):
        raise NotFound(f"no workload is called {name!r} in this scenario")
    stopped = [_stopped(player, one) for one in player.history if one.job == name]
    job = player.world.jobs.get(name)
    if job is None:
        return [*stopped, f"{name} is gone."]
    return [*stopped, *_now(player, job)]


def _stopped(player: Player, one: Eviction) -> str:
    what = "was stopped" if one.to is None else f"was moved from {one.node} to {one.to.node}"
    return f"{one.task} {what}: {because(player.world.jobs, one)}."


def _now(player: Player, job: Job) -> Iterator[str]:
    waiting = [task for task in job.tasks if task.state in _WAITS]
    for task in job.tasks:
        if task not in waiting:
            yield f"{task.name} {_place(task)}."
    if not waiting:
        return
    yield f"{job.name} of project {job.queue} waits for {len(waiting)} of {len(job.tasks)} tasks."
    for reason in player.decided.refusals.get(job.name, ()):
        yield f"{reason.step}: {reason.text}."
    world = player.world
    snapshot = world.snapshot()
    decided = plan(snapshot, world.policy, world.now, world.policies)
    for claim in what_would_help(snapshot, world.policy, world.now, job.name, decided, world.policies):
        yield f"{claim.text[0].upper()}{claim.text[1:]}."
    if any(task.state is TaskState.GATED for task in waiting):
        yield f"{job.name} is gated: it is not to be scheduled yet."
    turn = queue_positions(snapshot, world.policy, world.now, decided, world.policies).get(job.name)
    if turn is not None:
        yield f"It is number {turn.position_in_queue} of {turn.waiting_in_queue} that wait in project {job.queue}."


def _place(task: Task) -> str:
    if task.state in (TaskState.SUCCEEDED, TaskState.FAILED):
        return f"has {task.state.value}"
    gpus = ", ".join(str(share.index) for share in task.shares)
    where = f"on {task.node}" + (f", {'GPU' if len(task.shares) == 1 else 'GPUs'} {gpus}" if gpus else "")
    words = {TaskState.RUNNING: "runs", TaskState.NOMINATED: "has a place that is not free yet"}
    return f"{words.get(task.state, 'is on its way out')} {where}"
