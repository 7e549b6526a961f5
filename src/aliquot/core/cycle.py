"""One cycle of the scheduler, as a numbered list.

 1. See what is free, per device and per queue.
 2. Take waiting jobs, oldest first.
 3. May the queue take it? Otherwise say why.
 4. Place all its tasks, or none: the fullest node that fits, ties by name.
 5. What was placed is gone for the next job.

The same snapshot gives the same plan, whatever the order of its parts.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from aliquot.core import fit
from aliquot.core.fit.devices import choose
from aliquot.core.model import Job, Snapshot, Task, TaskState
from aliquot.core.plan import Bind, Plan, Refusal, Verdict
from aliquot.core.quota import within_quota
from aliquot.core.room import Free, Room


def plan(snapshot: Snapshot) -> Plan:
    room = Room.of(snapshot)
    queues = {queue.name: queue for queue in snapshot.queues}
    binds: list[Bind] = []
    refusals: dict[str, tuple[Refusal, ...]] = {}
    for job in sorted(snapshot.jobs, key=lambda job: (job.created, job.name)):
        pending = [task for task in job.tasks if task.state is TaskState.PENDING]
        if not pending:
            continue
        refused = within_quota(job, queues.get(job.queue), room)
        placed = _place(job, pending, room) if refused is None else refused
        if isinstance(placed, Refusal):
            refusals[job.name] = (placed,)
        else:
            binds += placed
    return Plan(tuple(binds), refusals)


def _place(job: Job, tasks: list[Task], room: Room) -> list[Bind] | Refusal:
    """A place for every task, or why there is none; a half-placed job is taken back."""
    placed: list[tuple[Task, Bind]] = []
    for task in sorted(tasks, key=lambda task: task.name):
        found = _find(job, task, room)
        if isinstance(found, Refusal):
            for earlier, bind in placed:
                room.hold(job, earlier, bind.node, bind.shares, sign=-1)
            return found
        shares = choose(task, found)
        room.hold(job, task, found.node.name, shares)
        placed.append((task, Bind(job.name, task.name, found.node.name, shares)))
    return [bind for _, bind in placed]


def _find(job: Job, task: Task, room: Room) -> Free | Refusal:
    refused: list[tuple[str, Refusal]] = []
    fitting: list[Free] = []
    for name, free in room.nodes.items():
        if job.pools and free.node.pool not in job.pools:
            continue
        found = fit.refusal(task, free)
        if found is None:
            fitting.append(free)
        else:
            refused.append((name, found))
    if not fitting:
        return _told(task, refused)
    # CPU-only work keeps away from GPUs; GPU work goes where the least is left.
    if task.request.devices == 0:
        return min(fitting, key=lambda free: (len(free.devices), free.cpu, free.node.name))
    return min(fitting, key=lambda free: (free.gpu, free.node.name))


def _told(task: Task, refused: list[tuple[str, Refusal]]) -> Refusal:
    """One sentence from what every node said: how many said what, the nearest miss first."""
    if not refused:
        return Refusal("no-nodes", Verdict.NEVER, "there are no nodes it may use")
    final = all(found.verdict is Verdict.NEVER for _, found in refused)
    verdict = Verdict.NEVER if final else Verdict.NOT_NOW
    groups: dict[str, list[Refusal]] = defaultdict(list)
    for _, found in refused:
        groups[found.code].append(found)
    parts = []
    for _, said in sorted(groups.items(), key=lambda item: (item[1][0].verdict is Verdict.NEVER, item[0])):
        counts = Counter(one.text for one in said)
        parts += [f"{count} {'node' if count == 1 else 'nodes'} {text}" for text, count in sorted(counts.items())]
    nearest = min((f for _, f in refused if f.verdict is verdict), key=lambda f: (f.missing_gpu or 1 << 60, f.code))
    where = "on no node of this cluster" if final else "on no node now"
    text = f"{_asked(task)} {where} ({'; '.join(parts)})"
    return Refusal(nearest.code, verdict, text, missing_gpu=nearest.missing_gpu, nodes=len(refused))


def _asked(task: Task) -> str:
    request = task.request
    if request.devices == 0:
        return f"{request.cpu / 1000:g} cores and {request.memory >> 20} MiB fit"
    if request.memory_mib:
        each = f"{request.memory_mib} MiB of GPU memory"
        return f"{each} fit" if request.devices == 1 else f"{each} on {request.devices} GPUs fit"
    total = request.devices * request.milli / 1000
    return f"{total:g} {'GPU fits' if total <= 1 else 'GPUs fit'}"
