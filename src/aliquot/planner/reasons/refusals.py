"""Refusals: what stood in the way, as facts and as a sentence.

Made once per kind of request, from the state in which the cycle leaves the cluster, and only for those who wait in the
end. First the job's own words (quota, priority), then the cluster's (which nodes lack what).
"""

from __future__ import annotations

from collections import Counter

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import PRESENT, JobState
from aliquot.planner.model import GPU, NOTHING, Amount
from aliquot.planner.placement import fit
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.task_class import MIG, NO_GPU, WHOLE, TaskClass
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.preemption.rules import Reclaim, Rule
from aliquot.planner.queues import quota
from aliquot.planner.reasons.format import amount_text, amounts_text, count, memory_text, request_text, span_text

_HOLDERS_NAMED = 3


class RefusalBuilder:
    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._rooms: dict[tuple[int, int], Refusal] = {}
        self._rules: dict[tuple[object, ...], Refusal] = {}

    def refusal(self, job: JobState, step: str, what: str, about: object) -> Refusal:
        asked = self._state.placer.next_request(job)
        if what == "quota":
            found = quota.refusal(job.queue, asked, job.nonpreemptible)
            if found is None:  # somebody else has left meanwhile
                text = f"project {job.queue.display_name} held all that it may when this had its turn"
                found = Refusal("over-quota", Verdict.NOT_NOW, text, queue=job.queue.name)
            return found
        if what == "capacity":
            assert isinstance(about, TaskClass)
            alike = sum(self._state.placer.task_class(member) is about for member in job.next_tasks())
            return self._capacity(about, max(alike, 1))
        assert isinstance(about, Rule)
        delay = (job.source.created, job.source.preemption_delay) if what == "preemption-delay" else None
        key = (step, what, job.queue, asked, delay)
        if key not in self._rules:
            self._rules[key] = self._rule(job, step, what, about, asked)
        return self._rules[key]

    # ---------------------------------------------------------------- rules

    def _rule(self, job: JobState, step: str, what: str, rule: Rule, asked: Amount) -> Refusal:
        match what:
            case "over-fair-share":
                return self._over_share(job, asked)
            case "nothing-to-reclaim":
                return self._too_little(rule, asked)
            case "preemption-delay":
                until = job.source.created + job.source.preemption_delay
                text = f"for {span_text(job.source.preemption_delay)} after its submission it makes nobody stop or move"
                return Refusal(what, Verdict.NOT_NOW, text, step, until=until)
            case "not-preemptible":
                text = "others are moved only for jobs that can be preempted themselves"
                return Refusal(what, Verdict.NEVER, text, step)
            case "no-lower-priority":
                text = f"project {job.queue.name} runs nothing of lower priority that could make way"
                return Refusal(what, Verdict.NOT_NOW, text, step, queue=job.queue.name)
            case "nothing-to-preempt":
                text = f"stopping all of lower priority in project {job.queue.name} would not be enough"
                return Refusal(what, Verdict.NOT_NOW, text, step, queue=job.queue.name)
            case "not-enough-free":
                missing = (max(asked[0] - self._state.pool.free, 0), 0, 0)
                text = f"moving others would not help: {amount_text(self._state.pool.free, 0)} free in all"
                return Refusal(what, Verdict.NOT_NOW, text, step, missing=missing, resource="gpu")
        if what in ("quota", "over-quota"):
            found = quota.refusal(job.queue, asked, job.nonpreemptible)
            if found is not None:
                return found
        verb = {"consolidate": "moving", "reclaim": "taking back from", "preempt": "stopping"}.get(step, "stopping")
        text = f"{verb} others makes no room for {amounts_text(asked)} in the right place"
        return Refusal("no-arrangement", Verdict.NOT_NOW, text, step)

    def _over_share(self, job: JobState, asked: Amount) -> Refusal:
        queue = job.queue
        bound = queue.share
        # The first that is short; by now somebody may have left, and then it is told by the GPUs.
        r = next((r for r in range(3) if queue.used[r] + asked[r] > bound[r]), 0)
        missing = [0, 0, 0]
        missing[r] = max(queue.used[r] + asked[r] - bound[r], 0)
        text = (
            f"project {queue.name} holds {amount_text(queue.used[r], r)} of its fair share of"
            f" {amount_text(bound[r], r)}; with {amount_text(asked[r], r)} more it would be above it,"
            " so it may not take from others"
        )
        return Refusal(
            "over-fair-share",
            Verdict.NOT_NOW,
            text,
            "reclaim",
            (missing[0], missing[1], missing[2]),
            queue.name,
            ("gpu", "cpu", "memory")[r],
        )

    def _too_little(self, rule: Rule, asked: Amount) -> Refusal:
        assert isinstance(rule, Reclaim)
        have = rule.reclaimable(self._state.victims)
        above = have - self._state.pool.free
        if above <= 0:
            text = "no other project holds more than it is due"
        else:
            text = f"others hold at most {amount_text(above, 0)} more than they are due"
        free = amount_text(max(self._state.pool.free, 0), 0)
        text += f", and {free} are free: {amount_text(asked[0], 0)} cannot be taken back"
        return Refusal(
            "nothing-to-reclaim", Verdict.NOT_NOW, text, "reclaim", (max(asked[0] - have, 0), 0, 0), resource="gpu"
        )

    # ---------------------------------------------------------------- room

    def _capacity(self, task_class: TaskClass, tasks: int) -> Refusal:
        key = (task_class.id, tasks)
        if key not in self._rooms:
            self._rooms[key] = self._no_room(task_class, tasks)
        return self._rooms[key]

    def _no_room(self, task_class: TaskClass, tasks: int) -> Refusal:
        state = self._state
        nodes = state.pool.nodes
        if not nodes:
            return Refusal("no-nodes", Verdict.NEVER, f"node pool {state.pool_name} has no nodes")
        cluster = fit.Cluster.of(node.source for node in nodes)
        said: Counter[tuple[bool, str, str]] = Counter()
        nearest: tuple[tuple[int, int], NodeState, str] | None = None
        for node in nodes:
            found = fit.node_refusal(task_class.task, node.source, cluster) if not task_class.mask[node.id] else None
            if found is None and not self._surely_large(task_class, node):
                found = fit.large_enough(task_class.task, node.source, cluster)
            if found is not None:
                said[found.verdict is Verdict.NEVER, found.code, found.text] += 1
                continue
            code, text, missing = self._lacks(task_class, node)
            said[False, code, text] += 1
            rank = ((missing, node.id), node, code)
            if nearest is None or rank[0] < nearest[0]:
                nearest = rank
        final = nearest is None and all(never for never, _, _ in said)
        parts = [f"{count(number, 'node')} {text}" for (_, _, text), number in sorted(said.items())]
        where = "on no node of this cluster" if final else "on no node now"
        what = request_text(task_class.request)
        if tasks > 1:
            what = f"{count(tasks, 'task')} of {what} each"
        text = f"{what} fit{'' if _plural(task_class, tasks) else 's'} {where}: {'; '.join(parts)}"
        code = nearest[2] if nearest else min(code for _, code, _ in said)
        verdict = Verdict.NEVER if final else Verdict.NOT_NOW
        lacking = (max(nearest[0][0], 0), 0, 0) if nearest and task_class.form != NO_GPU else NOTHING
        best = nearest[1] if nearest else None
        holders = tuple(job.name for job in self._jobs_on(best)[:_HOLDERS_NAMED]) if best else ()
        return Refusal(
            code, verdict, text, missing=lacking, node=best.name if best else "", nodes=len(nodes), holders=holders
        )

    def _surely_large(self, task_class: TaskClass, node: NodeState) -> bool:
        """The common case of `large_enough`, cheaply: nodes are many."""
        request = task_class.request
        if request.memory_mib or request.mig or node.profiles is not None:
            return False
        source = node.source
        return (
            task_class.devices <= len(node.sizes)
            and task_class.cpu <= source.cpu
            and task_class.memory <= source.memory
        )

    def _lacks(self, task_class: TaskClass, node: NodeState) -> tuple[str, str, int]:
        """What a node that is large enough lacks now: a word, a sentence and how many milli-GPU."""
        after_release = node.after_release
        if task_class.form not in (NO_GPU, MIG):
            free = after_release.whole if task_class.form == WHOLE else self._open(task_class, node)
            if free < task_class.devices:
                there = count(free, "GPU") if free > 0 else "no GPU"
                text = f"with {there} free" if task_class.form == WHOLE else f"with room on {there}"
                each = GPU if task_class.request.memory_mib else task_class.request.milli
                return "enough-gpu", text, (task_class.devices - free) * each
        elif task_class.form == MIG and task_class.find_devices(node, after_release) is None:
            return "enough-gpu", "without such a slice free", task_class.amount[0]
        if task_class.cpu > after_release.cpu:
            return "enough-cpu", f"with {max(after_release.cpu, 0) / 1000:g} cores free", 0
        if task_class.memory > after_release.memory:
            return "enough-memory", f"with {memory_text(max(after_release.memory, 0))} of memory free", 0
        if after_release.pods < 1:
            return "enough-pods", "without a place for another pod", 0
        if not self._state.pool.pod_affinity.allows(task_class, node):
            return "neighbours", "refused by rules about neighbours", 0
        return "together", "with room, but not for all that start together", 0

    def _open(self, task_class: TaskClass, node: NodeState) -> int:
        after_release = node.after_release
        return sum(
            after_release.milli[row] >= task_class.need(size)[0] and after_release.mib[row] >= task_class.need(size)[1]
            for row, size in enumerate(node.sizes)
        )

    def _jobs_on(self, node: NodeState) -> list[JobState]:
        jobs = {member.job: None for member in node.tasks if member.state in PRESENT and member.allocs}
        return sorted(jobs, key=lambda job: job.name)


def _plural(task_class: TaskClass, tasks: int) -> bool:
    request = task_class.request
    if tasks > 1 or task_class.form == NO_GPU:
        return True
    return request.devices > 1 if request.memory_mib else request.devices * request.milli != GPU
