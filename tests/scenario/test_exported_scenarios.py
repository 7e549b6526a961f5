"""What the scheduler looked at, written as a scenario and read again, is the same and is decided the same."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.cli.output import as_yaml
from aliquot.planner import (
    Device,
    DeviceShare,
    Job,
    Node,
    NodeSelectorRequirement,
    Plan,
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
    plan,
)
from aliquot.planner.model import GPU
from aliquot.scheduler.last_decision import Decision
from aliquot.sim import SimulatedCluster, load_clusters
from aliquot.sim.cluster import below_minimum
from aliquot.sim.export import export_scenario
from support.planner.checks import after
from support.planner.clusters import Case, cases

NOW = 1_790_000_000.123456  # a real clock has fractions


def written(snapshot: Snapshot, policy: Policy, now: float, **policies: Policy) -> SimulatedCluster:
    """The snapshot written to a scenario file and read back."""
    import yaml

    text = as_yaml(export_scenario(Decision(snapshot, policy, policies, now, Plan())))
    (world,) = load_clusters(yaml.load(text, yaml.CSafeLoader))
    return world


def shifted(snapshot: Snapshot, by: float) -> Snapshot:
    """The same snapshot with all times shifted."""

    def moved(moment: float | None) -> Any:
        return None if moment is None else moment + by

    def job(old: Job) -> Job:
        return replace(
            old,
            tasks=tuple(replace(task, releasing_since=moved(task.releasing_since)) for task in old.tasks),
            created=moved(old.created),
            started=moved(old.started),
            saved=moved(old.saved),
            stops=tuple(moved(stop) for stop in old.stops),
            stale_since=moved(old.stale_since),
        )

    queues = tuple(replace(queue, created=moved(queue.created)) for queue in snapshot.queues)
    return replace(snapshot, queues=queues, jobs=tuple(map(job, snapshot.jobs)))


def relative(snapshot: Snapshot, now: float) -> Snapshot:
    """The snapshot as a scenario has it: times relative to now, sorted by name, with all defaults filled in."""
    snapshot = shifted(snapshot, -now)
    jobs = [
        replace(
            job,
            min_available=job.min_available and max(1, job.min_available),
            tasks=tuple(task if task.node else replace(task, shares=()) for task in job.tasks),
        )
        for job in snapshot.jobs
    ]
    # A job without `stale_since` that runs below its minimum is stale from now on.
    stale = [replace(job, stale_since=0.0) if job.stale_since is None and below_minimum(job) else job for job in jobs]
    queues = [replace(queue, pools={"default": PoolQuota(), **queue.pools}) for queue in snapshot.queues]
    mounted = {claim for job in snapshot.jobs for claim in job.claims}
    return Snapshot(
        tuple(sorted(snapshot.nodes, key=lambda node: node.name)),
        tuple(sorted(queues, key=lambda queue: queue.name)),
        tuple(
            sorted((job for job in stale if job.tasks), key=lambda job: job.name)
        ),  # jobs without tasks are not written
        snapshot.topologies,
        frozenset(mounted) if snapshot.claims is None else snapshot.claims,
    )


def sorted_queues(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, queues=tuple(sorted(snapshot.queues, key=lambda queue: queue.name)))


def same(case: Case, rounds: int, lingering: bool) -> None:
    """The export is read back and decided alike, also some plans later, with nominated and terminating tasks."""
    snapshot, shift = case.snapshot, NOW - case.now
    for _ in range(rounds):
        snapshot = after(snapshot, plan(snapshot, case.policy, case.now), lingering=lingering, now=case.now)
    snapshot = shifted(snapshot, shift)  # to times as large as real ones
    read = written(snapshot, case.policy, NOW)
    read_back, wanted = sorted_queues(read.snapshot()), relative(snapshot, NOW)
    assert read_back == wanted
    assert read.policy == case.policy
    replayed, decided = plan(read.snapshot(), read.policy, read.now), plan(snapshot, case.policy, NOW)
    assert replayed == replace(decided, refusals=replayed.refusals)
    assert _refusals_without_times(replayed) == _refusals_without_times(decided)


def _refusals_without_times(decided: Plan) -> Any:
    """Refusals without `until`, which is relative to another time."""
    return {name: [replace(refusal, until=None) for refusal in reasons] for name, reasons in decided.refusals.items()}


def explore(count: int, again: bool) -> None:
    wanted = settings(
        max_examples=count, derandomize=again, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
    wanted(given(cases(), st.integers(0, 2), st.booleans())(same))()


def test_random_clusters() -> None:
    """Every random cluster is read as it was written, and decided alike."""
    explore(80, again=True)


@pytest.mark.soak
def test_random_clusters_soak() -> None:
    """The same for thousands of clusters."""
    explore(4000, again=False)


NAMED, MANY_CORES = NodeSelectorRequirement("", "In", ("n1",)), NodeSelectorRequirement("cores", "Gt", ("8",))
# Each field of the model has a value other than its default somewhere.
EVERYTHING = Snapshot(
    nodes=(
        Node(
            "n1", (Device(0, 1000), Device(2, 2000, healthy=False)), 8000, 1 << 34, 7, {"zone": "a"},
            (Taint("keep", "out", "NoExecute"),), False, "default", "none", (500, 250, 1 << 20),
        ),
        Node("n2", (Device(0, 5120, True, "1g.5gb"), Device(1, 10240)), 1500, 3 << 30, pool="other", mig="mixed"),
    ),
    queues=(
        Queue(
            "department/d", "", {"default": PoolQuota((None, 1000, 1 << 30))}, NOW - 50, 10.0, 20.0, (0.25, 0.5, 0.125)
        ),
        Queue(
            "p", "department/d",
            {
                "default": PoolQuota((1500, None, None), (3000, 4000, 1 << 31), (2, 3, 4), False, 7),
                "other": PoolQuota((1000, None, None)),
            },
            NOW - 40,
        ),
    ),
    jobs=(
        Job(
            "runai-p/gang", "p",
            (
                Task(
                    "a", Request(1, 500, 0, 250, 1 << 20), TaskState.RUNNING, "n1", (DeviceShare(0, 500, 500),), "x", 3
                ),
                Task("b", Request(1, 0, 333), TaskState.PENDING, "", (), "y", 0, {"zone": "a"}, (), ("dgx",)),
                Task("c", Request(1, 1000, mig=(("1g.5gb", 1),)), subgroup="y", tolerations=(Toleration("k", "v"),)),
                Task("d", Request(1, 1000), subgroup="y", affinity=((), ((), (NAMED, MANY_CORES)))),
            ),
            created=NOW - 30.25, priority=75, preemptible=False, pools=("other",), started=NOW - 20, saved=NOW - 10,
            stops=(NOW - 100, NOW - 90.5), min_subgroups=1, topology_constraint=TopologyConstraint("t", None, "rack"),
            subgroups=(
                SubGroup("x", "", 1), SubGroup("y", "z", 1, None, TopologyConstraint("t", "zone", "rack")),
                SubGroup("z", min_subgroups=1),
            ),
            stale_since=NOW - 5, stale_grace=30.0, preemption_delay=15.0, labels={"app": "u"},
            pod_affinity=PodAffinityTerm((("app", "u"),), "zone"),
            pod_anti_affinity=PodAffinityTerm((("app", "v"),), "rack"),
            claims=("data",), hindrance="it asks too much",
        ),
        Job(
            "runai-p/going", "p",
            (
                Task(
                    "a", Request(1, 1000), TaskState.RELEASING, "n1", (DeviceShare(0, 1000, 1000),),
                    releasing_since=NOW + 9,
                ),
            ),
            NOW - 3, min_available=1,
        ),
    ),
    topologies={"t": ("zone", "rack")},
    claims=frozenset({"data"}),
)  # fmt: skip
UNUSUAL_POLICY = Policy(
    steps=("allocate", "reclaim"), spare="weight", gpu="spread", cpu="spread", device="spread", stale_grace=5,
    terminating_grace=6, usage_weight=0.5, victims="newest", disruption_bound=None, share_unit="whole",
    saturation_multiplier=2, department_first=False, hold_after=None, restarts_per_hour=3,
)  # fmt: skip


def test_all_fields_are_exported() -> None:
    """All that the scheduler reads is in the file."""
    read = written(EVERYTHING, UNUSUAL_POLICY, NOW)
    wanted = relative(EVERYTHING, NOW)
    gang, terminating = wanted.jobs  # both have a task called a, and tasks of a scenario are known by name alone
    tasks = [tuple(replace(task, name=f"{job.name}/{task.name}") for task in job.tasks) for job in (gang, terminating)]
    wanted = replace(wanted, jobs=(replace(gang, tasks=tasks[0]), replace(terminating, tasks=tasks[1])))
    assert sorted_queues(read.snapshot()) == wanted
    assert read.policy == UNUSUAL_POLICY


@pytest.mark.parametrize(
    "kind", [Snapshot, Node, Device, Queue, PoolQuota, Job, Task, SubGroup, TopologyConstraint, Policy]
)
def test_no_field_is_forgotten(kind: type) -> None:
    """A new field of the model must be added to the cluster of the test above."""
    objects = [UNUSUAL_POLICY, *_inside(EVERYTHING)]
    for field in fields(kind):
        values = [getattr(item, field.name) for item in objects if type(item) is kind]
        default = field.default_factory() if callable(field.default_factory) else field.default
        assert any(value != default for value in values), f"{kind.__name__}.{field.name}"


def _inside(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [inner for each in value for inner in _inside(each)]
    if isinstance(value, dict):
        return _inside(list(value.values()))
    if hasattr(value, "__dataclass_fields__"):
        return [value, *(inner for field in fields(value) for inner in _inside(getattr(value, field.name)))]
    return []


def test_policies_of_pools() -> None:
    """The policies of node pools are exported."""
    read = written(EVERYTHING, Policy(), NOW, other=UNUSUAL_POLICY, empty=Policy(spare="weight"))
    assert (read.policy, read.policies) == (Policy(), {"other": UNUSUAL_POLICY})


def test_overallocated_devices() -> None:
    """Shares that do not match a request are written as they are."""
    odd = Task("odd", Request(2, 1000), TaskState.RUNNING, "n1", (DeviceShare(0, GPU, 1000), DeviceShare(7, 3, 4)))
    crowd = Task("crowd", Request(1, 500), TaskState.RUNNING, "n1", (DeviceShare(0, 500, 500),))
    nominated = replace(crowd, name="nominated", state=TaskState.NOMINATED)
    jobs = tuple(Job(task.name, "p", (task,), NOW) for task in (odd, crowd, nominated))
    read = written(replace(EVERYTHING, jobs=jobs), Policy(), NOW)
    assert {name: job.tasks for name, job in read.jobs.items()} == {job.name: job.tasks for job in jobs}


def test_what_is_not_exported() -> None:
    """Jobs without a project, tasks on a removed node and nominations for one are not exported."""
    tasks = [
        ("projectless", "nobody", Task("s", Request(1, 1000))),
        ("lost", "p", Task("l", Request(1, 1000), TaskState.RUNNING, "gone", (DeviceShare(0, GPU, 1000),))),
        ("nominated", "p", Task("q", Request(1, 1000), TaskState.NOMINATED, "gone", (DeviceShare(0, GPU, 1000),))),
        ("strange", "p", Task("t", Request(1, 1500))),
    ]
    jobs = tuple(Job(name, queue, (task,), NOW) for name, queue, task in tasks)
    read = written(replace(EVERYTHING, jobs=jobs), Policy(), NOW)
    assert {name: job.tasks[0].state for name, job in read.jobs.items()} == {
        "nominated": TaskState.PENDING,
        "strange": TaskState.PENDING,
    }
