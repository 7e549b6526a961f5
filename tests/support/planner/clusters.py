"""Random clusters, queue trees and jobs, for property tests.

Running tasks are placed by first fit under the rules of the reference implementation, so that every snapshot could have
come about. `tiny` clusters are small enough for the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from aliquot.labels import NODE_TYPE
from aliquot.planner.model import (
    Bound,
    Device,
    Job,
    Node,
    NodeSelectorRequirement,
    PodAffinityTerm,
    Policy,
    PoolQuota,
    Queue,
    Request,
    Snapshot,
    SubGroup,
    Taint,
    Task,
    TaskState,
    Toleration,
    TopologyConstraint,
)
from support.planner.reference import HOLDS_NOW, POOL, ReferenceState, has_minimum, may_use, minimums

Draw = Callable[[st.SearchStrategy[Any]], Any]
TOPOLOGY = {"default": ("zone", "rack")}
_MIG = (("1g.5gb", 5 << 10), ("2g.10gb", 10 << 10))
_WHOLE = st.sampled_from([1, 1, 1, 2, 2, 3])
_PARTS = st.sampled_from([500, 500, 250, 300, 334, 700, 999, 125, 1])
_POOR = {
    "default": PoolQuota(),
    "other": PoolQuota(),
}  # no quota, and so above its fair share as soon as other queues want something
_PLENTY = (64_000, 256 << 30)


@dataclass(frozen=True)
class Case:
    snapshot: Snapshot
    policy: Policy
    now: float = 1000.0


def rarely(draw: Draw, one_in: int) -> bool:
    return bool(draw(st.integers(0, one_in - 1)) == one_in - 1)


@st.composite
def cases(draw: Draw, tiny: bool = False, plain: bool = False, newest: bool = True) -> Case:
    """A snapshot and a policy. In half of them one queue holds what others want. `plain` leaves out all but GPUs and
    queues. Without `newest` victims are chosen by the default policy."""
    plain = plain or draw(st.booleans())
    nodes = draw(st.lists(_nodes(plain), min_size=1, max_size=3 if tiny else 5))
    nodes = tuple(replace(node, name=f"n{index}") for index, node in enumerate(nodes))
    queues = draw(_trees())
    count = draw(st.integers(2, 6 if tiny else 9))
    parents = {queue.parent for queue in queues}
    leaves = [queue.name for queue in queues if queue.name not in parents]
    if not tiny and rarely(draw, 6):
        nodes = (*nodes[:-1], replace(nodes[-1], pool="other"))
    jobs = [draw(_jobs(index, leaves, nodes, tiny, plain)) for index in range(count)]
    runs = 0
    if draw(st.booleans()):
        hog, runs = draw(st.sampled_from(leaves)), draw(st.integers(1, count))
        held = [replace(job, queue=hog, priority=50, preemptible=True) for job in jobs[:runs]]
        others = [leaf for leaf in leaves if leaf != hog] or leaves
        jobs = [*held, *(replace(job, queue=draw(st.sampled_from(others))) for job in jobs[runs:])]
        queues = tuple(replace(queue, pools=_POOR) if queue.name == hog else queue for queue in queues)
    snapshot = Snapshot(nodes, queues, (), TOPOLOGY)
    return Case(_start_some(draw, snapshot, jobs, runs), draw(policies(newest)))


@st.composite
def policies(draw: Draw, newest: bool) -> Policy:
    return Policy(
        spare=draw(st.sampled_from(["quota", "weight"])),
        gpu=draw(st.sampled_from(["binpack", "binpack", "spread", "least-fragments"])),
        cpu="least-fragments" if rarely(draw, 3) else "binpack",
        device="spread" if rarely(draw, 5) else "binpack",
        victims="newest" if newest and rarely(draw, 3) else "least-disruption",
        share_unit=draw(st.sampled_from(["milli", "whole"])),
        disruption_bound=draw(st.sampled_from([4, 4, None])),
        hold_after=900.0 if newest and rarely(draw, 4) else None,  # the oracle does not know capacity reservations
        restarts_per_hour=draw(st.integers(0, 2)) if rarely(draw, 5) else None,
    )


@st.composite
def _nodes(draw: Draw, plain: bool) -> Node:
    count = draw(st.sampled_from([0, 1, 2, 2, 3, 4]))
    size = draw(st.sampled_from([10_000, 10_000, 24_000]))
    devices = tuple(Device(index, size) for index in range(count))
    node = Node("", devices, *_PLENTY)
    if plain:
        return node
    if rarely(draw, 6):
        slices = draw(st.lists(st.sampled_from(_MIG), min_size=1, max_size=3))
        devices = tuple(Device(index, mib, profile=profile) for index, (profile, mib) in enumerate(slices))
        node = replace(node, devices=devices, mig="mixed")
    elif rarely(draw, 12):
        node = replace(node, mig="single")
    if devices and rarely(draw, 12):
        node = replace(node, devices=(replace(devices[0], healthy=False), *devices[1:]))
    zone = draw(st.sampled_from("ab"))
    labels = {"zone": zone, "rack": zone + draw(st.sampled_from("12"))}
    if rarely(draw, 4):
        labels[NODE_TYPE] = "dgx"
    if rarely(draw, 10):
        del labels["rack"]
    return replace(
        node,
        labels=labels,
        taints=(Taint("keep", "out"),) if rarely(draw, 8) else (),
        ready=not rarely(draw, 15),
        cpu=draw(st.sampled_from([2000, 4000])) if rarely(draw, 4) else node.cpu,
        memory=4 << 30 if rarely(draw, 8) else node.memory,
        pods=draw(st.integers(1, 3)) if rarely(draw, 8) else node.pods,
    )


@st.composite
def _trees(draw: Draw) -> tuple[Queue, ...]:
    """One to three levels, one to five queues."""
    queues: list[Queue] = []

    def grow(parent: str, depth: int) -> None:
        for index in range(draw(st.sampled_from([1, 2, 2] if depth else [1, 2, 2, 3]))):
            name = f"{parent}{'pqr'[index]}"
            terms = draw(_pool_quotas())
            queue = Queue(name, parent, {"default": terms, "other": terms}, float(draw(st.integers(0, 2))))
            if rarely(draw, 8):
                preempt_min = draw(st.sampled_from([None, 100.0]))
                queue = replace(queue, reclaim_min_runtime=100.0, preempt_min_runtime=preempt_min)
            queues.append(queue)
            if depth < 2 and rarely(draw, 3):
                grow(name, depth + 1)

    grow("", 0)
    return tuple(queues)


@st.composite
def _pool_quotas(draw: Draw) -> PoolQuota:
    gpu = draw(st.sampled_from([0, 1000, 1000, 2000, 2000, 3000, 500, 1500, None]))
    quota: Bound = (gpu, 2000 if rarely(draw, 8) else None, None)
    most = draw(st.sampled_from([1000, 2500, 4000])) if rarely(draw, 5) else None
    limit: Bound = (most, 3000 if rarely(draw, 10) else None, None)
    weight = float(draw(st.sampled_from([1, 1, 2, 3, 0])))
    over = not rarely(draw, 6)
    return PoolQuota(quota, limit, (weight, weight, weight), over, 200 if rarely(draw, 8) else 100)


@st.composite
def _requests(draw: Draw, nodes: tuple[Node, ...], plain: bool) -> Request:
    cpu = draw(st.sampled_from([0, 500, 1000])) if not plain else 0
    memory = 1 << 30 if cpu and rarely(draw, 3) else 0
    kind = draw(st.sampled_from(["whole", "whole", "whole", "part", "part", "memory", "cpu", "mig"]))
    if kind == "mig" and not plain and any(node.mig == "mixed" for node in nodes):
        profile = draw(st.sampled_from(_MIG))[0]
        count = 2 if rarely(draw, 5) else 1
        return Request(count, 1000, 0, cpu, memory, ((profile, count),))
    if kind == "part":
        return Request(2 if rarely(draw, 5) else 1, draw(_PARTS), 0, cpu, memory)
    if kind == "memory":
        return Request(2 if rarely(draw, 5) else 1, 0, draw(st.sampled_from([5000, 3333, 12_000])), cpu, memory)
    if kind == "cpu" and not plain:
        return Request(cpu=cpu or 250, memory=memory)
    return Request(draw(_WHOLE), 1000, 0, cpu, memory)


@st.composite
def _jobs(draw: Draw, index: int, leaves: list[str], nodes: tuple[Node, ...], tiny: bool, plain: bool) -> Job:
    name = f"j{index}"
    request = draw(_requests(nodes, plain))
    count = 1 if rarely(draw, 2) else draw(st.sampled_from([1, 2, 2, 3] if tiny else [1, 2, 3, 4]))
    tasks = [Task(f"{name}-{number}", request) for number in range(count)]
    job = Job(
        name,
        draw(st.sampled_from(leaves)),
        tuple(tasks),
        created=float(draw(st.integers(0, 9))),
        priority=draw(st.sampled_from([50, 50, 75, 125])),
        preemptible=not rarely(draw, 4),
        min_available=draw(st.integers(1, count)) if count > 1 and rarely(draw, 2) else None,
    )
    if any(node.pool == "other" for node in nodes):
        job = replace(job, pools=draw(st.sampled_from([(), ("other",), ("default", "other"), ("other", "default")])))
    if count > 1 and rarely(draw, 4):
        job = _grouped(draw, job, nodes, plain)
    return job if plain else _constrained(draw, job)


def _grouped(draw: Draw, job: Job, nodes: tuple[Node, ...], plain: bool) -> Job:
    """Two subgroups with a request each; sometimes one is enough, sometimes both are in a third."""
    outer = "all" if rarely(draw, 4) else ""
    needed = 1 if rarely(draw, 4) else None
    other = draw(_requests(nodes, plain))
    head = draw(st.integers(1, len(job.tasks) - 1))
    tasks = [replace(task, subgroup="x") for task in job.tasks[:head]]
    tasks += [replace(task, subgroup="y", request=other) for task in job.tasks[head:]]
    subgroups = [SubGroup("x", outer), SubGroup("y", outer, 1 if rarely(draw, 3) else None)]
    if outer:
        subgroups.append(SubGroup(outer, min_subgroups=needed))
    elif needed:
        job = replace(job, min_subgroups=needed)
    if not plain and rarely(draw, 3):
        subgroups[0] = replace(subgroups[0], topology_constraint=_topology_constraint(draw))
    return replace(job, tasks=tuple(tasks), subgroups=tuple(subgroups), min_available=None)


# In zone a or on node n1; not in zone b and with a rack label; matched by no node.
AFFINITIES = (
    (((NodeSelectorRequirement("zone", "In", ("a",)),), (NodeSelectorRequirement("", "In", ("n1",)),)),),
    (((NodeSelectorRequirement("zone", "NotIn", ("b",)),),), ((NodeSelectorRequirement("rack", "Exists"),),)),
    (((NodeSelectorRequirement("zone", "In", ("nowhere",)),),),),
)


def _topology_constraint(draw: Draw) -> TopologyConstraint:
    kind = draw(st.integers(0, 3))
    if kind == 3:
        return TopologyConstraint(required="zone", preferred="rack")
    return (
        TopologyConstraint(preferred="rack")
        if kind == 2
        else TopologyConstraint(required=draw(st.sampled_from(["zone", "rack"])))
    )


def _constrained(draw: Draw, job: Job) -> Job:
    """Adds constraints on nodes, topology and pod affinity."""
    if rarely(draw, 6):
        job = replace(job, topology_constraint=_topology_constraint(draw))
    if rarely(draw, 3):
        job = replace(job, labels={"app": draw(st.sampled_from("uv"))})
    if rarely(draw, 10):
        rule = PodAffinityTerm((("app", draw(st.sampled_from("uv"))),), draw(st.sampled_from(["rack", "zone"])))
        job = replace(job, pod_anti_affinity=rule) if rarely(draw, 2) else replace(job, pod_affinity=rule)
    fields: dict[str, Any] = {}
    if rarely(draw, 10):
        fields["selector"] = {"zone": "a"}
    if rarely(draw, 12):
        fields["node_types"] = ("dgx",)
    if rarely(draw, 10):
        fields["affinity"] = draw(st.sampled_from(AFFINITIES))
    if rarely(draw, 4):
        fields["tolerations"] = (Toleration("keep"),)
    return replace(job, tasks=tuple(replace(task, **fields) for task in job.tasks)) if fields else job


def _start_some(draw: Draw, snapshot: Snapshot, jobs: list[Job], sure: int) -> Snapshot:
    """Starts some of the jobs if they fit, always the first `sure` ones. An elastic job starts with any number of tasks
    from its minimum on."""
    for index, job in enumerate(jobs):
        if index < sure or draw(st.integers(0, 4)) < (1 if sure else 3):
            lacking = draw(st.integers(0, 2))  # elastic tasks that do not run
            placed = _placed(snapshot, job, lacking)
            if placed is not None:
                job = replace(placed, started=float(draw(st.sampled_from([0, 500, 990]))))
                job = replace(job, stops=draw(st.sampled_from([(), (-2700.0,), (-2600.0,), (-2600.0, 900.0)])))
            if placed is not None and len(job.tasks) == 1 and rarely(draw, 6):
                state = draw(st.sampled_from([TaskState.RELEASING, TaskState.EVICTED]))
                job = replace(job, tasks=(replace(job.tasks[0], state=state),))
        elif rarely(draw, 15):
            job = replace(job, tasks=(*job.tasks[:-1], replace(job.tasks[-1], state=TaskState.GATED)))
        snapshot = replace(snapshot, jobs=(*snapshot.jobs, job))
    return snapshot


def _placed(snapshot: Snapshot, job: Job, lacking: int) -> Job | None:
    pool = (job.pools or (POOL,))[0]
    job = replace(job, pools=(pool,)) if job.pools else job
    reference = ReferenceState(replace(snapshot, jobs=(*snapshot.jobs, job)), (*HOLDS_NOW, TaskState.NOMINATED), pool)
    locations = {}
    minimum = minimums(job)
    present = dict.fromkeys(minimum, 0)
    for task in job.tasks:
        total = sum(other.subgroup == task.subgroup for other in job.tasks)
        if present[task.subgroup] >= max(minimum[task.subgroup], total - lacking):
            continue
        location = _first_fit(reference, job, task)
        if location is not None:
            locations[task.name] = location
            present[task.subgroup] += 1
    if not locations or not has_minimum(job, present):
        return None
    if any(0 < present[name] < minimum[name] for name in minimum):
        return None
    running = TaskState.RUNNING
    tasks = (
        replace(task, state=running, node=locations[task.name][0], shares=locations[task.name][1])
        if task.name in locations
        else task
        for task in job.tasks
    )
    return replace(job, tasks=tuple(tasks))


def _first_fit(reference: ReferenceState, job: Job, task: Task) -> Any:
    for name, node in reference.nodes.items():
        if not may_use(job, task, node):
            continue
        for shares in reference.free[name].choices(task.request):
            reference.place(job, task, (name, shares))
            fine = reference.over(job) is None and reference.satisfies_topology(job)
            if fine and reference.satisfies_anti_affinity(job, task) and reference.satisfies_pod_affinity(job, task):
                return name, shares
            reference.remove(job, task)
    return None
