"""Refusals: what prevented a job from being placed, as facts and as a sentence.

They are built at the end of a cycle, once for all equal requests, and only for jobs that still wait.
"""

from __future__ import annotations

from collections import Counter

from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import PRESENT, JobState
from aliquot.planner.model import GPU, NOTHING, RESOURCES, Amount
from aliquot.planner.placement import fit
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.task_class import MIG, NO_GPU, WHOLE, TaskClass
from aliquot.planner.plan import Refusal, Verdict
from aliquot.planner.preemption.rules import Reclaim, Rule
from aliquot.planner.queues import quota
from aliquot.planner.reasons.format import amount_text, amounts_text, count, memory_text, request_text, span_text

_HOLDERS_NAMED = 3
# By step: what a search chooses among. The sentences of two steps differ, because a plan reports equal sentences once.
_VICTIMS = {
    "consolidate": "workloads to move",
    "reclaim": "workloads to stop in other projects",
    "preempt": "workloads of lower priority to stop",
}


class RefusalBuilder:
    """Builds refusals from the state in which a cycle leaves a node pool."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._by_capacity: dict[tuple[int, int], Refusal] = {}
        self._by_rule: dict[tuple[object, ...], Refusal] = {}

    def refusal(self, job: JobState, step: str, reason: str, about: object) -> Refusal:
        """`reason` is `quota`, `capacity` (`about` is then the task class that did not fit) or the code of a refusal by
        an eviction step (`about` is then its rule)."""
        asked = self._state.placer.next_request(job)
        if reason == "quota":
            refusal = quota.refusal(job.queue, asked, job.nonpreemptible)
            if refusal is None:  # other jobs have been evicted since
                text = f"project {job.queue.display_name} was at its quota when this was considered"
                refusal = Refusal("over-quota", Verdict.NOT_NOW, text, queue=job.queue.name)
            return refusal
        if reason == "capacity":
            assert isinstance(about, TaskClass)
            tasks = sum(self._state.placer.task_class(task) is about for task in job.next_tasks())
            return self._capacity_refusal(about, max(tasks, 1))
        assert isinstance(about, Rule)
        delay = (job.source.created, job.source.preemption_delay) if reason == "preemption-delay" else None
        key = (step, reason, job.queue, asked, delay)
        if key not in self._by_rule:
            self._by_rule[key] = self._rule_refusal(job, step, reason, about, asked)
        return self._by_rule[key]

    # ---------------------------------------------------------------- rules of the eviction steps

    def _rule_refusal(self, job: JobState, step: str, reason: str, rule: Rule, asked: Amount) -> Refusal:
        project = job.queue.name
        match reason:
            case "over-fair-share":
                return self._over_fair_share(job, asked)
            case "nothing-to-reclaim":
                return self._nothing_to_reclaim(rule, asked)
            case "preemption-delay":
                delay = job.source.preemption_delay
                text = f"in the first {span_text(delay)} after its submission it may not stop or move other workloads"
                return Refusal(reason, Verdict.NOT_NOW, text, step, until=job.source.created + delay)
            case "not-preemptible":
                text = "other workloads are moved only for workloads that are preemptible themselves"
                return Refusal(reason, Verdict.NEVER, text, step)
            case "no-lower-priority":
                text = f"project {project} runs nothing preemptible of lower priority"
                return Refusal(reason, Verdict.NOT_NOW, text, step, queue=project)
            case "nothing-to-preempt":
                text = f"preempting everything of lower priority in project {project} would not free enough"
                return Refusal(reason, Verdict.NOT_NOW, text, step, queue=project)
            case "not-enough-free":
                free = self._state.pool.free
                text = f"moving other workloads would not help: {amount_text(free, 0)} free in total"
                missing = (max(asked[0] - free, 0), 0, 0)
                return Refusal(reason, Verdict.NOT_NOW, text, step, missing=missing, resource="gpu")
        if reason in ("quota", "over-quota"):
            refusal = quota.refusal(job.queue, asked, job.nonpreemptible)
            if refusal is not None:
                return refusal
        text = f"no choice of {_VICTIMS[step]} makes room for {amounts_text(asked)}"
        return Refusal("no-arrangement", Verdict.NOT_NOW, text, step)

    def _over_fair_share(self, job: JobState, asked: Amount) -> Refusal:
        queue = job.queue
        # The first resource that is short. If evictions have changed that since, it is reported for GPUs.
        r = next((r for r in range(3) if queue.used[r] + asked[r] > queue.share[r]), 0)
        missing = [0, 0, 0]
        missing[r] = max(queue.used[r] + asked[r] - queue.share[r], 0)
        text = (
            f"project {queue.name} holds {amount_text(queue.used[r], r)} of its fair share of"
            f" {amount_text(queue.share[r], r)}; {amount_text(asked[r], r)} more would exceed it,"
            " so it may not reclaim from other projects"
        )
        return Refusal(
            "over-fair-share",
            Verdict.NOT_NOW,
            text,
            "reclaim",
            (missing[0], missing[1], missing[2]),
            queue.name,
            RESOURCES[r],
        )

    def _nothing_to_reclaim(self, rule: Rule, asked: Amount) -> Refusal:
        assert isinstance(rule, Reclaim)
        reclaimable = rule.reclaimable(self._state.victims)
        excess = reclaimable - self._state.pool.free
        if excess <= 0:
            text = "no other project holds more than it may keep"
        else:
            text = f"other projects hold at most {amount_text(excess, 0)} more than they may keep"
        text += f", and {amount_text(max(self._state.pool.free, 0), 0)} free: not enough for {amount_text(asked[0], 0)}"
        missing = (max(asked[0] - reclaimable, 0), 0, 0)
        return Refusal("nothing-to-reclaim", Verdict.NOT_NOW, text, "reclaim", missing, resource="gpu")

    # ---------------------------------------------------------------- capacity of the nodes

    def _capacity_refusal(self, task_class: TaskClass, tasks: int) -> Refusal:
        """For a number of equal tasks that did not all fit."""
        key = (task_class.id, tasks)
        if key not in self._by_capacity:
            self._by_capacity[key] = self._explain_nodes(task_class, tasks)
        return self._by_capacity[key]

    def _explain_nodes(self, task_class: TaskClass, tasks: int) -> Refusal:
        nodes = self._state.pool.nodes
        if not nodes:
            return Refusal("no-nodes", Verdict.NEVER, f"node pool {self._state.pool_name} has no nodes")
        cluster = fit.Cluster.of(node.source for node in nodes)
        reasons: Counter[tuple[bool, str, str]] = Counter()  # (never, code, text)
        nearest: tuple[tuple[int, int], NodeState, str] | None = None
        for node in nodes:
            refusal = fit.node_refusal(task_class.task, node.source, cluster) if not task_class.mask[node.id] else None
            if refusal is None and not self._surely_large_enough(task_class, node):
                refusal = fit.large_enough(task_class.task, node.source, cluster)
            if refusal is not None:
                reasons[refusal.verdict is Verdict.NEVER, refusal.code, refusal.text] += 1
                continue
            code, text, missing = self._shortage(task_class, node)
            reasons[False, code, text] += 1
            candidate = ((missing, node.id), node, code)
            if nearest is None or candidate[0] < nearest[0]:
                nearest = candidate
        never = nearest is None and all(never for never, _, _ in reasons)
        text = self._nodes_text(task_class, tasks, reasons, never)
        if nearest is None:
            code = min(code for _, code, _ in reasons)
            return Refusal(code, Verdict.NEVER if never else Verdict.NOT_NOW, text, nodes=len(nodes))
        (missing, _), node, code = nearest
        return Refusal(
            code,
            Verdict.NOT_NOW,
            text,
            missing=(max(missing, 0), 0, 0) if task_class.form != NO_GPU else NOTHING,
            node=node.name,
            nodes=len(nodes),
            holders=tuple(job.name for job in _jobs_on(node)[:_HOLDERS_NAMED]),
        )

    def _nodes_text(
        self, task_class: TaskClass, tasks: int, reasons: Counter[tuple[bool, str, str]], never: bool
    ) -> str:
        request = request_text(task_class.request)
        if never and task_class.form == WHOLE and all(code == "too-large" for _, code, _ in reasons):
            sizes = Counter(sum(not gpu.profile for gpu in node.devices) for node in self._state.pool.nodes)
            largest = max(sizes)
            if largest < task_class.devices:
                return f"no node has {request}; {_largest_text(sizes.total(), sizes[largest], largest)}"
        if never:
            head = f"no node can provide {request}"
        elif tasks > 1:
            head = f"{count(tasks, 'task')} of {request} each do not fit now"
        else:
            head = f"no node has room for {request} now"
        parts = [f"{count(number, 'node')} {text}" for (_, _, text), number in sorted(reasons.items())]
        return f"{head}: {'; '.join(parts)}"

    def _surely_large_enough(self, task_class: TaskClass, node: NodeState) -> bool:
        """A cheap check that covers the common cases of `fit.large_enough`, because there may be many nodes."""
        request = task_class.request
        if request.memory_mib or request.mig or node.profiles is not None:
            return False
        source = node.source
        return (
            task_class.devices <= len(node.sizes)
            and task_class.cpu <= source.cpu
            and task_class.memory <= source.memory
        )

    def _shortage(self, task_class: TaskClass, node: NodeState) -> tuple[str, str, int]:
        """What a node that is large enough lacks now: the code, the text and the missing milli-GPU."""
        free = node.after_release
        if task_class.form not in (NO_GPU, MIG):
            devices = free.whole if task_class.form == WHOLE else _fitting_devices(task_class, node)
            if devices < task_class.devices:
                gpus = count(devices, "GPU") if devices > 0 else "no GPU"
                text = (
                    f"with {gpus} free"
                    if task_class.form == WHOLE
                    else f"with {gpus} that {'has' if devices <= 1 else 'have'} enough free"
                )
                each = GPU if task_class.request.memory_mib else task_class.request.milli
                return "enough-gpu", text, (task_class.devices - devices) * each
        elif task_class.form == MIG and task_class.find_devices(node, free) is None:
            return "enough-gpu", "without enough free slices of this profile", task_class.amount[0]
        if task_class.cpu > free.cpu:
            return "enough-cpu", f"with {max(free.cpu, 0) / 1000:g} cores free", 0
        if task_class.memory > free.memory:
            return "enough-memory", f"with {memory_text(max(free.memory, 0))} of memory free", 0
        if free.pods < 1:
            return "enough-pods", "that can run no more pods", 0
        if not self._state.pool.pod_affinity.allows(task_class, node):
            return "neighbours", "excluded by pod affinity", 0
        return "together", "with room, but not for all tasks that start together", 0


def _largest_text(nodes: int, largest_nodes: int, gpus: int) -> str:
    if nodes == 1:
        return f"the only node has {gpus or 'none'}"
    if not gpus:
        return f"none of the {nodes} nodes has a GPU"
    return f"the largest of the {nodes} nodes {'has' if largest_nodes == 1 else 'have'} {gpus}" + (
        "" if largest_nodes == 1 else " each"
    )


def _fitting_devices(task_class: TaskClass, node: NodeState) -> int:
    """How many devices have enough free for one share of the request."""
    free = node.after_release
    needs = (task_class.need(size) for size in node.sizes)
    return sum(
        free.milli[index] >= milli and free.mib[index] >= memory_mib for index, (milli, memory_mib) in enumerate(needs)
    )


def _jobs_on(node: NodeState) -> list[JobState]:
    """Jobs with devices of a node, by name."""
    jobs = {task.job: None for task in node.tasks if task.state in PRESENT and task.allocs}
    return sorted(jobs, key=lambda job: job.name)
