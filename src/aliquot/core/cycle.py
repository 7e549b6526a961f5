"""One cycle of the scheduler, as a numbered list.

 1. Promises: whoever was promised a place that is free now starts there.
 2. Allocate: waiting jobs, whoever's turn it is, get what is free; nobody is disturbed.
 3. Consolidate: where only fragmentation is in the way, running jobs are moved together.
 4. Reclaim: who is due more takes it back from those who hold more than they are due.
 5. Preempt: inside one project, lower priority makes way for higher.
 6. Stale gangs: a gang that has run with too few members for too long is stopped.
 7. Whoever still waits is told why.

The same snapshot gives the same plan, whatever the order of its parts. Each node pool is a cluster of its own, with its
own shares; a job that is refused in one pool has its turn in the next that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.core import gate
from aliquot.core.jobs import JobState, Member
from aliquot.core.model import DEFAULT_POOL, Amount, Job, Policy, Snapshot
from aliquot.core.outcome import Outcome
from aliquot.core.plan import Plan
from aliquot.core.scene import Scene
from aliquot.core.turns import Turns
from aliquot.core.solver import Ledger, Solver
from aliquot.core.victims import Consolidate, Preempt, Reclaim, Tenants


def plan(snapshot: Snapshot, policy: Policy | None = None, now: float = 0) -> Plan:
    policy = policy or Policy()
    pools = sorted({node.pool for node in snapshot.nodes} | {DEFAULT_POOL})
    scenes: dict[str, Scene] = {}
    outcome = Outcome()
    jobs = sorted(snapshot.jobs, key=lambda job: job.name)
    for pool in pools:
        scenes[pool] = scene = Scene(snapshot, policy, now, pool)
        scene.admit(jobs)
        run(scene, outcome)
    return outcome.plan(scenes.values())


def run(scene: Scene, outcome: Outcome) -> None:
    waiting = [job for job in scene.jobs if job.waits]
    steps = scene.policy.steps
    if "allocate" in steps:
        waiting = allocate(scene, waiting, outcome)
    ledgers: dict[object, Ledger] = {}
    tenants = Tenants(scene) if waiting else None
    for step, rule in (("consolidate", Consolidate), ("reclaim", Reclaim), ("preempt", Preempt)):
        if step in steps and waiting and tenants is not None:
            waiting = displace(scene, waiting, outcome, rule, tenants, ledgers)


def displace(scene, jobs, outcome, make, tenants, ledgers):
    placer = scene.placer
    waiting: list[JobState] = []
    turns = Turns(jobs, lambda job: placer.asked(job.next_tasks()))
    failed=set()
    while job := turns.pop():
        members = job.next_tasks()
        if not members:
            waiting.append(job)
            continue
        asked = placer.asked(members)
        rule = make(scene, job, asked)
        if make is Consolidate and scene.room.free < asked[0]:
            waiting.append(job); continue
        if make is Reclaim and not rule.due():
            waiting.append(job); continue
        if make is Reclaim and not enough(scene, rule, tenants):
            waiting.append(job); continue
        key=(rule.scope, tuple(placer.kind(m).id for m in members))
        if key in failed:
            waiting.append(job); continue
        stopped = Solver(scene, tenants, rule, ledgers).solve(members)
        if stopped is None:
            failed.add(key)
            waiting.append(job); continue
        failed.clear()
        outcome.stop(stopped, job, rule.step)
        outcome.served(job.name)
        for q in {m.job.queue for m in stopped}: turns.touch(q)
        turns.touch(job.queue)
        if job.next_tasks():
            turns.push(job)
    return waiting

def enough(scene, rule, tenants):
    asked = rule.asked[0]
    if not asked: return True
    have = scene.room.free
    sides={}
    for leaf in rule.leaves():
        theirs = rule.pair(leaf)[1]
        side = sides.setdefault(theirs,[0,0])
        side[0]+=tenants.amount.get(leaf,0); side[1]=max(side[1],tenants.largest.get(leaf,0))
    for theirs,(amount,largest) in sides.items():
        keep = rule.may_keep(theirs)
        if keep[0] is not None and not any(keep[r] is not None and theirs.used[r]>keep[r] for r in (1,2)):
            amount=min(amount, theirs.used[0]-keep[0]+largest-1)
        have+=max(amount,0)
    return have>=asked

def allocate(scene: Scene, jobs: Sequence[JobState], outcome: Outcome) -> list[JobState]:
    """Give what is free to those whose turn it is. Returns who still waits."""
    placer = scene.placer
    waiting: list[JobState] = []
    turns = Turns(jobs, lambda job: placer.asked(job.next_tasks()))
    while job := turns.pop():
        members = job.next_tasks()
        if not members:
            waiting.append(job)
            continue
        asked = placer.asked(members)
        if not gate.passes(job.queue, asked, job.fixed):
            waiting.append(job)
            continue
        if not placer.place(job, members):
            waiting.append(job)
            continue
        turns.touch(job.queue)
        if job.next_tasks():
            turns.push(job)
    return waiting
