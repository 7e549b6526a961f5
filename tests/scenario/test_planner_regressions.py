"""Small clusters in which the property tests once found a wrong plan. Every plan on the way is checked."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Job, PodAffinityTerm, Policy, Snapshot, SubGroup, Task, TaskState, TopologyConstraint, plan
from aliquot.planner.incremental import IncrementalPlanner, changes
from support.planner import V100_MIB, World, cluster, gpus, quota, request
from support.planner.checks import check, settle


def settled(world: World, lingering: bool = False) -> set[str]:
    """The tasks that run once nothing changes any more; `lingering`: evicted tasks terminate for a round."""
    final: Snapshot = settle(world.snapshot(), world.policy, world.now, lingering)
    return {task.name for job in final.jobs for task in job.tasks if task.state is TaskState.RUNNING}


def test_no_over_quota_counts_all_usage() -> None:
    """A department that may not go over quota stays within it, with preemptible jobs too."""
    world = cluster([gpus(3)], {"d": quota(1.5, over_quota=False), "a": quota(None, parent="d")})
    world.pending("train", gpu=1).pending("build", gpu=0.5, count=2, preemptible=False)
    assert settled(world) in ({"train-0-0"}, {"build-0-0", "build-1-0"})


def test_consolidation_moves_a_gang_whole() -> None:
    """A gang is moved with all of its tasks."""
    world = cluster([gpus(1, pods=1), gpus(1), gpus(1)], {"a": quota(0)})
    world.pending("gang", gpu=0.5, count=4).pending("whole", gpu=1)
    assert len(settled(world)) == 5


def test_anti_affinity_to_a_task_that_could_have_moved() -> None:
    """A job with anti-affinity is not placed beside a task that could have been moved but stays."""
    world = cluster([gpus(3, labels={"rack": "r"})], {"a": quota(0)})
    world.pending("other", mib=3333, on=2).pending("light", labels={"app": "u"})
    world.pending("shy", gpu=1, pod_anti_affinity=PodAffinityTerm((("app", "u"),), "rack"))
    assert "shy-0-0" not in settled(world)


def test_nominated_gang_starts_whole() -> None:
    """A gang whose devices are released one after the other starts when all are free."""
    world = cluster([gpus(1, "n1")], {"a": quota(1), "b": quota(0)})
    world.running("old", "n1", [0], "b", gpu=0.5).pending("gang", gpu=0.3, count=3)
    assert settled(world, lingering=True) == {"gang-0-0", "gang-1-0", "gang-2-0"}


def test_elastic_job_stays_in_its_pool() -> None:
    """A job that runs in one node pool grows only there."""
    world = cluster([gpus(1, "n1"), gpus(1, "n2", pool="other")], {"a": quota(1)})
    world.pending("x", gpu=0.9, count=3, min_available=1, pools=("default", "other"))
    assert len(settled(world)) == 1


def test_incomplete_subgroup_has_a_refusal() -> None:
    """A job with an incomplete subgroup has a refusal, though the rest of the job has started."""
    world = cluster([gpus(2)], {"a": quota(2)})
    one_gpu = request(1)
    tasks = [
        Task("x", one_gpu, subgroup="x"),
        Task("y-0", one_gpu, subgroup="y"),
        Task("y-1", one_gpu, TaskState.GATED, subgroup="y"),
    ]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y")), min_subgroups=1)
    assert world.codes("j") == ["incomplete"]


def test_nomination_counts_by_its_device() -> None:
    """A memory request that is nominated for a large device is not refused for what it would count on a small one."""
    sizes = [gpus(1, "n1", memory_mib=10_000), gpus(3, "n2", memory_mib=24_000)]
    world = cluster(sizes, {"a": quota(3, over_quota=False)})
    world.running("x", "n1", [0], gpu=0.5, state=TaskState.RELEASING)
    world.pending("memory", mib=3333, priority=75).pending("light", gpu=0.125, on=2)
    world.pending("two", gpu=1, count=2, priority=75).pending("parts", gpu=0.334, count=2, priority=125)
    settled(world)


def test_extra_task_of_an_evicted_gang() -> None:
    """An elastic job that is evicted does not start its extra task in the same plan."""
    world = cluster([gpus(3, "n1")], {"a": quota(0)})
    held = [world.task(f"x-{index}", "n1", [index]) for index in range(2)]
    world.job("x", "a", *held, Task("x-2", request(1)), min_available=2)
    world.pending("y", gpu=2, priority=125)
    assert "y-0-0" in settled(world)


def test_extra_task_waits_for_its_gang() -> None:
    """A task above the minimum does not start before the minimum does."""
    world = cluster([gpus(1, "n1")], {"a": quota(0)})
    world.running("old", "n1", [0])
    tasks = [
        Task("x", request(1), subgroup="x"),
        Task("y-0", request(), subgroup="y"),
        Task("y-1", request(), subgroup="y"),
    ]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y", min_available=1)), priority=125)
    assert settled(world, lingering=True) == {"x", "y-0", "y-1"}


def test_gang_of_memory_requests_within_limit() -> None:
    """Memory requests count by the devices they get, and the limit applies to their sum."""
    world = cluster([gpus(1, memory_mib=10_000), gpus(1, memory_mib=24_000)], {"a": quota(1, limit=1)})
    world.pending("x", mib=5000, count=3)
    settled(world)


def test_fractions_of_two_devices_each() -> None:
    """Three tasks with half of two GPUs each fill three GPUs."""
    world = cluster([gpus(3)], {"a": quota(3)}).pending("x", gpu=0.5, on=2, count=3)
    assert len(settled(world)) == 3


def test_affinity_target_is_not_evicted() -> None:
    """The task that a pending job must be near is not evicted for it; another is, even if it is larger."""
    world = cluster([gpus(2, "n1", labels={"rack": "r"})], {"a": quota(0)})
    world.running("friend", "n1", [0], gpu=0.5, labels={"app": "u"}).running("other", "n1", [1])
    world.pending("x", gpu=1, priority=75, pod_affinity=PodAffinityTerm((("app", "u"),), "rack"))
    assert settled(world) == {"friend-0-0", "x-0-0"}


def test_any_subgroups_will_do() -> None:
    """Where one of two subgroups is enough, the second may start."""
    world = cluster([gpus(1)], {"a": quota(1)})
    tasks = [Task("x", request(2), subgroup="x"), Task("y", request(1), subgroup="y")]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y")), min_subgroups=1)
    assert settled(world) == {"y"}


def test_extra_task_is_evicted_once() -> None:
    """A job with one task above its minimum loses that one, or all of its tasks."""
    world = cluster([gpus(2, "n1"), gpus(3, "n2")], {"a": quota(0)})
    tasks = [
        Task("x", request(), TaskState.RUNNING, "n1", subgroup="x"),
        replace(world.task("y-0", "n1", [1]), subgroup="y"),
        replace(world.task("y-1", "n2", [0]), subgroup="y"),
    ]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y", min_available=1)))
    world.running("one", "n1", [0], priority=75).pending("gang", gpu=1, count=4, priority=75)
    assert "gang-0-0" in settled(world)


def test_moved_gang_is_not_evicted_in_part() -> None:
    """A plan that moves one task of a gang does not evict the others."""
    world = cluster([gpus(2, "n1")], {"a": quota(0)})
    world.running("half", "n1", [0], gpu=0.5)
    world.job("gang", "a", *(world.task(f"gang-{index}", "n1", [index > 0], 0.3) for index in range(3)))
    world.pending("memory", mib=V100_MIB // 2).pending("wide", gpu=0.334, on=2, priority=75)
    assert "wide-0-0" in settled(world)


def test_gang_waits_for_tasks_that_do_not_exist() -> None:
    """A gang of which only one task exists starts nothing, and its refusal says so."""
    world = cluster([gpus(4, "n1")], {"a": quota(4)}).pending("gang", gpu=1, min_available=3)
    assert world.started() == {}
    assert world.codes("gang") == ["incomplete"]


def test_jobs_without_project_hold_their_devices() -> None:
    """Devices of a job without a project are not allocated to others, also not by an incremental planner."""
    world = cluster([gpus(2, "n1")], {"a": quota(2)}).running("lost", "n1", [0], "gone").pending("wide", gpu=2)
    alone = replace(world.snapshot(), jobs=world.snapshot().jobs[1:])
    assert world.started() == {}
    assert list(plan(alone).binds)
    planner, before = IncrementalPlanner(), alone
    planner.plan(before, world.policy, world.now)
    for snapshot in (world.snapshot(), alone, world.snapshot()):
        following = replace(snapshot, nodes=before.nodes, queues=before.queues, topologies=before.topologies)
        decided = planner.plan(following, world.policy, world.now, changed=changes(before, following))
        assert decided == plan(following, world.policy, world.now)
        before = following


def test_protected_job_keeps_its_minimum() -> None:
    """A protected job with one task above its minimum does not lose two tasks."""
    world = cluster([gpus(1, "n0"), gpus(1, "n1")], {"p": quota(1), "q": quota(0)})
    world.job("elastic", "q", *(world.task(f"e-{n}", f"n{n}", [0]) for n in range(2)), min_available=1, started=0.0)
    world.pending("gang", "p", gpu=0.5, count=3)
    world.policy = replace(world.policy, restarts_per_hour=0)
    assert len(world.plan().evictions) < 2


def test_gang_at_its_minimum_is_evicted_whole() -> None:
    """A pending task above the minimum does not make a running one an extra task."""
    world = cluster([gpus(2, "n0"), gpus(2, "n1")], {"p": quota(0), "q": quota(0)})
    held = [replace(world.task(f"g-{n}", f"n{n}", [0, 1]), request=request(2)) for n in range(2)]
    world.job("gang", "p", *held, Task("g-2", request(2)), min_available=2, started=0.0)
    for name in ("x", "y", "z"):
        world.pending(name, "p", gpu=1)
    world.pending("due", "q", gpu=1)
    decided = world.plan()
    assert {eviction.task for eviction in decided.evictions} == {"g-0", "g-1"}
    assert "due" in {nomination.job for nomination in decided.nominations}


def test_job_with_hindrance_that_lost_its_nomination() -> None:
    """A job that this scheduler cannot run does not start because the node it was nominated for has gone."""
    world = cluster([gpus(2, "n1")], {"a": quota(2)})
    tasks = (Task("pending", request(1)), Task("nominated", request(1), TaskState.NOMINATED, "gone"))
    world.job("j", "a", *tasks, min_available=1, hindrance="it needs two rules")
    assert world.started() == {}
    assert world.codes("j") == ["cannot-give"]


def newest(**more: int) -> Policy:
    return Policy(victims="newest", hold_after=None, **more)  # type: ignore[arg-type]  # fields of Policy


def gang(world: World, *places: tuple[str, int, float, str], **more: object) -> World:
    """A running job of these tasks: node, device, GPUs, subgroup."""
    tasks = [
        replace(world.task(f"gang-{index}", node, [device], gpu), subgroup=subgroup)
        for index, (node, device, gpu, subgroup) in enumerate(places)
    ]
    world.jobs.append(Job("gang", "a", tuple(tasks), created=0.0, started=0.0, **more))  # type: ignore[arg-type]
    return world


def test_extra_tasks_on_other_nodes_are_evicted_too() -> None:
    """Newest first: when the minimum of a gang is evicted on one node, its tasks on other nodes are evicted too."""
    world = cluster([gpus(1, "n1"), gpus(1, "n2")], {"a": quota(0)}, policy=newest())
    subgroups = (SubGroup("x"), SubGroup("y", min_available=1))
    gang(world, ("n1", 0, 1, "x"), ("n2", 0, 0.5, "y"), ("n2", 0, 0.5, "y"), subgroups=subgroups)
    world.pending("urgent", gpu=1, priority=75)
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert {eviction.task for eviction in decided.evictions} == {"gang-0", "gang-1", "gang-2"}


def test_batch_ignores_the_order_of_subgroups() -> None:
    """Gangs that differ only in the order of their subgroups are one batch."""
    world = cluster([gpus(8, "n1")], {"a": quota(8)})
    subgroups = (SubGroup("x"), SubGroup("y"))
    for name, ordered in (("one", subgroups), ("two", subgroups[::-1])):
        world.job(name, "a", *(Task(f"{name}-{part}", request(1), subgroup=part) for part in "xy"), subgroups=ordered)
    state = world.cycle_state()
    assert [len(batch.jobs) for batch in state.pending_batches(state.jobs).values()] == [2]


def test_batch_compares_all_subgroups() -> None:
    """Where one of two subgroups is enough, gangs with the same next tasks may differ in the alternatives."""
    world = cluster([gpus(1, "n1")], {"a": quota(8)})
    subgroups = (SubGroup("x"), SubGroup("y"))
    for name, other in (("first", 3), ("second", 1)):
        tasks = (Task(f"{name}-x", request(2), subgroup="x"), Task(f"{name}-y", request(other), subgroup="y"))
        world.job(name, "a", *tasks, subgroups=subgroups, min_subgroups=1)
    assert settled(world) == {"second-y"}


def test_newest_first_keeps_the_minimum() -> None:
    """Newest first: a protected job loses only the tasks above its minimum, over all attempts of a plan."""
    world = cluster([gpus(2, "n1"), gpus(1, "n2")], {"a": quota(0)}, policy=newest(restarts_per_hour=0))
    gang(world, ("n1", 0, 1, ""), ("n1", 1, 1, ""), ("n2", 0, 1, ""), min_available=1)
    world.pending("urgent", gpu=1, count=3, priority=75)
    assert world.plan().evictions == ()
    world.jobs[-1] = replace(world.jobs[-1], tasks=world.jobs[-1].tasks[:2])
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert len(decided.evictions) == 2


def test_two_jobs_swap_nodes() -> None:
    """A small job moves to the node of a large one, and the large one to the node of the small one, though the small
    one has affinity to the large: then a third job fits."""
    world = cluster([gpus(2, "n1"), gpus(3, "n2")], {"a": quota(0)})
    world.nodes = [replace(node, labels={"rack": "r"}) for node in world.nodes]
    world.nodes[0] = replace(world.nodes[0], pods=1)
    world.running("large", "n2", [1, 2], gpu=2, labels={"app": "v"})
    world.running("small", "n1", [0], priority=75, pod_affinity=PodAffinityTerm((("app", "v"),), "rack"))
    world.running("other", "n2", [0], priority=75, preemptible=False)
    world.pending("third", gpu=1)
    final = settle(world.snapshot(), world.policy, world.now, False)
    nodes = {task.name: task.node for job in final.jobs for task in job.tasks if task.state is TaskState.RUNNING}
    assert nodes == {"large-0-0": "n1", "small-0-0": "n2", "other-0-0": "n2", "third-0-0": "n2"}


def test_two_jobs_swap_nodes_for_a_topology_constraint() -> None:
    """They also swap for a job with a topology constraint, which is then placed."""
    world = cluster([gpus(1, "n1", labels={"rack": "r"}), gpus(2, "n2", labels={"rack": "r"}, pods=2)], {"a": quota(0)})
    world.topologies = {"default": ("rack",)}
    world.running("whole", "n1", [0]).running("stays", "n2", [0]).running("part", "n2", [1], gpu=0.5)
    world.pending("near", gpu=0.5, topology_constraint=TopologyConstraint(required="rack"))
    assert "near-0-0" in settled(world)


def test_preempt_evicts_more_than_capacity_needs() -> None:
    """A queue also evicts a job whose devices are not needed, where it would otherwise grow above its fair share while
    another queue is below its own."""
    world = cluster([gpus(4, "n1"), gpus(2, "n2")], {"a": quota(0), "b": quota(2, over_quota=False)})
    gang(world, ("n1", 1, 1, ""), ("n1", 2, 1, ""), min_available=1)
    world.running("single", "n1", [3], queue="a").running("other", "n1", [0], queue="b")
    world.pending("short", gpu=2, queue="b")
    world.job("urgent", "a", *(Task(f"urgent-{index}", request(2)) for index in range(2)), priority=75)
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert {eviction.task for eviction in decided.evictions} == {"gang-0", "gang-1", "single-0-0"}
    assert {"urgent-0", "urgent-1", "other-0-0"} <= settled(world)
