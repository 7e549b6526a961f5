"""Small clusters in which a search through random ones once found something wrong. Every plan on the way is checked."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Job, PodAffinityTerm, Policy, Snapshot, SubGroup, Task, TaskState, TopologyConstraint, plan
from aliquot.planner.incremental import IncrementalPlanner, changes
from support.planner import V100_MIB, World, cluster, gpus, quota, request
from support.planner.checks import check, settle


def rest(world: World, lingering: bool = False) -> set[str]:
    """The tasks that run once nothing changes any more; `lingering`: who is stopped takes a round to go."""
    rested: Snapshot = settle(world.snapshot(), world.policy, world.now, lingering)
    return {task.name for job in rested.jobs for task in job.tasks if task.state is TaskState.RUNNING}


def test_no_over_quota_counts_all_that_is_held() -> None:
    """A department that may not borrow stays within its quota, whatever of it may be stopped."""
    world = cluster([gpus(3)], {"d": quota(1.5, over_quota=False), "a": quota(None, parent="d")})
    world.pending("train", gpu=1).pending("build", gpu=0.5, count=2, preemptible=False)
    assert rest(world) in ({"train-0-0"}, {"build-0-0", "build-1-0"})


def test_consolidation_moves_a_gang_whole() -> None:
    """A gang that makes room is moved with all its tasks."""
    world = cluster([gpus(1, pods=1), gpus(1), gpus(1)], {"a": quota(0)})
    world.pending("gang", gpu=0.5, count=4).pending("whole", gpu=1)
    assert len(rest(world)) == 5


def test_who_stays_keeps_others_apart() -> None:
    """A job that refuses a neighbour does not move in because the neighbour could have been moved."""
    world = cluster([gpus(3, labels={"rack": "r"})], {"a": quota(0)})
    world.pending("other", mib=3333, on=2).pending("light", labels={"app": "u"})
    world.pending("shy", gpu=1, pod_anti_affinity=PodAffinityTerm((("app", "u"),), "rack"))
    assert "shy-0-0" not in rest(world)


def test_promised_gang_starts_whole() -> None:
    """A gang whose places become free one after the other starts when all of them are."""
    world = cluster([gpus(1, "n1")], {"a": quota(1), "b": quota(0)})
    world.running("old", "n1", [0], "b", gpu=0.5).pending("gang", gpu=0.3, count=3)
    assert rest(world, lingering=True) == {"gang-0-0", "gang-1-0", "gang-2-0"}


def test_elastic_job_stays_in_its_pool() -> None:
    """A job that has begun in one node pool grows there and nowhere else."""
    world = cluster([gpus(1, "n1"), gpus(1, "n2", pool="other")], {"a": quota(1)})
    world.pending("x", gpu=0.9, count=3, min_available=1, pools=("default", "other"))
    assert len(rest(world)) == 1


def test_part_of_a_job_that_cannot_begin_yet_is_told() -> None:
    """A subgroup that is not complete is told so, though the rest of its job has started."""
    world = cluster([gpus(2)], {"a": quota(2)})
    one = request(1)
    tasks = [
        Task("x", one, subgroup="x"),
        Task("y-0", one, subgroup="y"),
        Task("y-1", one, TaskState.GATED, subgroup="y"),
    ]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y")), min_subgroups=1)
    assert world.codes("j") == ["incomplete"]


def test_promise_counts_by_its_device() -> None:
    """An amount of memory that was promised a large device is not refused for what it would take of a small one."""
    sizes = [gpus(1, "n1", memory_mib=10_000), gpus(3, "n2", memory_mib=24_000)]
    world = cluster(sizes, {"a": quota(3, over_quota=False)})
    world.running("x", "n1", [0], gpu=0.5, state=TaskState.RELEASING)
    world.pending("memory", mib=3333, priority=75).pending("light", gpu=0.125, on=2)
    world.pending("two", gpu=1, count=2, priority=75).pending("parts", gpu=0.334, count=2, priority=125)
    rest(world)


def test_extra_task_goes_with_its_gang() -> None:
    """An elastic job that is stopped does not start its extra task in the same plan."""
    world = cluster([gpus(3, "n1")], {"a": quota(0)})
    held = [world.task(f"x-{index}", "n1", [index]) for index in range(2)]
    world.job("x", "a", *held, Task("x-2", request(1)), min_available=2)
    world.pending("y", gpu=2, priority=125)
    assert "y-0-0" in rest(world)


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
    assert rest(world, lingering=True) == {"x", "y-0", "y-1"}


def test_gang_of_memory_keeps_the_limit() -> None:
    """Amounts of memory count by the devices they get, and a limit holds for all of them together."""
    world = cluster([gpus(1, memory_mib=10_000), gpus(1, memory_mib=24_000)], {"a": quota(1, limit=1)})
    world.pending("x", mib=5000, count=3)
    rest(world)


def test_parts_of_two_devices_each() -> None:
    """Three tasks of half of two GPUs fill three GPUs."""
    world = cluster([gpus(3)], {"a": quota(3)}).pending("x", gpu=0.5, on=2, count=3)
    assert len(rest(world)) == 3


def test_company_is_not_stopped_for_who_wants_it() -> None:
    """Who wants to be near somebody is given the place of another, even where that is the larger one."""
    world = cluster([gpus(2, "n1", labels={"rack": "r"})], {"a": quota(0)})
    world.running("friend", "n1", [0], gpu=0.5, labels={"app": "u"}).running("other", "n1", [1])
    world.pending("x", gpu=1, priority=75, pod_affinity=PodAffinityTerm((("app", "u"),), "rack"))
    assert rest(world) == {"friend-0-0", "x-0-0"}


def test_any_subgroups_will_do() -> None:
    """Where one of two subgroups is enough, it may be the second."""
    world = cluster([gpus(1)], {"a": quota(1)})
    tasks = [Task("x", request(2), subgroup="x"), Task("y", request(1), subgroup="y")]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y")), min_subgroups=1)
    assert rest(world) == {"y"}


def test_one_spare_task_is_spare_once() -> None:
    """A job with one task above its minimum loses that one, or all of its tasks."""
    world = cluster([gpus(2, "n1"), gpus(3, "n2")], {"a": quota(0)})
    tasks = [
        Task("x", request(), TaskState.RUNNING, "n1", subgroup="x"),
        replace(world.task("y-0", "n1", [1]), subgroup="y"),
        replace(world.task("y-1", "n2", [0]), subgroup="y"),
    ]
    world.job("j", "a", *tasks, subgroups=(SubGroup("x"), SubGroup("y", min_available=1)))
    world.running("one", "n1", [0], priority=75).pending("gang", gpu=1, count=4, priority=75)
    assert "gang-0-0" in rest(world)


def test_moved_gang_is_not_stopped_in_part() -> None:
    """A gang of which one task is moved in a plan is not stopped but for that one in the same plan."""
    world = cluster([gpus(2, "n1")], {"a": quota(0)})
    world.running("half", "n1", [0], gpu=0.5)
    world.job("gang", "a", *(world.task(f"gang-{index}", "n1", [index > 0], 0.3) for index in range(3)))
    world.pending("memory", mib=V100_MIB // 2).pending("wide", gpu=0.334, on=2, priority=75)
    assert "wide-0-0" in rest(world)


def test_one_of_three_waits_for_the_others() -> None:
    """A gang of which only one task exists so far starts nothing, and says so."""
    world = cluster([gpus(4, "n1")], {"a": quota(4)}).pending("gang", gpu=1, min_available=3)
    assert world.started() == {}
    assert world.codes("gang") == ["incomplete"]


def test_who_is_of_no_project_holds_its_place() -> None:
    """What runs in a namespace without a project is not given to others; nor by a session, when it comes and goes."""
    world = cluster([gpus(2, "n1")], {"a": quota(2)}).running("lost", "n1", [0], "gone").pending("wide", gpu=2)
    alone = replace(world.snapshot(), jobs=world.snapshot().jobs[1:])
    assert world.started() == {}
    assert list(plan(alone).binds)
    session, before = IncrementalPlanner(), alone
    session.plan(before, world.policy, world.now)
    for snapshot in (world.snapshot(), alone, world.snapshot()):
        following = replace(snapshot, nodes=before.nodes, queues=before.queues, topologies=before.topologies)
        decided = session.plan(following, world.policy, world.now, changed=changes(before, following))
        assert decided == plan(following, world.policy, world.now)
        before = following


def test_who_is_left_alone_keeps_its_minimum() -> None:
    """Two tasks that could each be spared are not both taken from a job that may lose only what is above."""
    world = cluster([gpus(1, "n0"), gpus(1, "n1")], {"p": quota(1), "q": quota(0)})
    world.job("elastic", "q", *(world.task(f"e-{n}", f"n{n}", [0]) for n in range(2)), min_available=1, started=0.0)
    world.pending("gang", "p", gpu=0.5, count=3)
    world.policy = replace(world.policy, restarts_per_hour=0)
    assert len(world.plan().evictions) < 2


def test_a_gang_at_its_minimum_goes_whole() -> None:
    """One more task of it that waits does not make one of those that run a spare one."""
    world = cluster([gpus(2, "n0"), gpus(2, "n1")], {"p": quota(0), "q": quota(0)})
    held = [replace(world.task(f"g-{n}", f"n{n}", [0, 1]), request=request(2)) for n in range(2)]
    world.job("gang", "p", *held, Task("g-2", request(2)), min_available=2, started=0.0)
    for name in ("x", "y", "z"):
        world.pending(name, "p", gpu=1)
    world.pending("due", "q", gpu=1)
    decided = world.plan()
    assert {one.task for one in decided.evictions} == {"g-0", "g-1"}
    assert "due" in {one.job for one in decided.nominations}


def newest(**more: int) -> Policy:
    return Policy(victims="newest", hold_after=None, **more)  # type: ignore[arg-type]  # of its fields


def gang(world: World, *places: tuple[str, int, float, str], **more: object) -> World:
    """A running job of these tasks: node, device, GPUs, group."""
    tasks = [
        replace(world.task(f"gang-{index}", node, [device], gpu), subgroup=subgroup)
        for index, (node, device, gpu, subgroup) in enumerate(places)
    ]
    world.jobs.append(Job("gang", "a", tuple(tasks), created=0.0, started=0.0, **more))  # type: ignore[arg-type]
    return world


def test_spare_tasks_elsewhere_go_too() -> None:
    """Newest first: whoever stops a gang's minimum on one node stops what is left of it on others."""
    world = cluster([gpus(1, "n1"), gpus(1, "n2")], {"a": quota(0)}, policy=newest())
    subgroups = (SubGroup("x"), SubGroup("y", min_available=1))
    gang(world, ("n1", 0, 1, "x"), ("n2", 0, 0.5, "y"), ("n2", 0, 0.5, "y"), subgroups=subgroups)
    world.pending("urgent", gpu=1, priority=75)
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert {one.task for one in decided.evictions} == {"gang-0", "gang-1", "gang-2"}


def test_gangs_are_alike_however_their_groups_are_told() -> None:
    """They have one turn together; apart, the second could be tried when things are different already."""
    world = cluster([gpus(8, "n1")], {"a": quota(8)})
    subgroups = (SubGroup("x"), SubGroup("y"))
    for name, told in (("one", subgroups), ("two", subgroups[::-1])):
        world.job(name, "a", *(Task(f"{name}-{part}", request(1), subgroup=part) for part in "xy"), subgroups=told)
    state = world.cycle_state()
    assert [len(batch.jobs) for batch in state.pending_batches(state.jobs).values()] == [2]


def test_gangs_with_other_ways_are_not_alike() -> None:
    """Where one group of two is enough, two gangs that want the same next may still differ in what else would do."""
    world = cluster([gpus(1, "n1")], {"a": quota(8)})
    subgroups = (SubGroup("x"), SubGroup("y"))
    for name, other in (("first", 3), ("second", 1)):
        tasks = (Task(f"{name}-x", request(2), subgroup="x"), Task(f"{name}-y", request(other), subgroup="y"))
        world.job(name, "a", *tasks, subgroups=subgroups, min_subgroups=1)
    assert rest(world) == {"second-y"}


def test_all_together_keep_the_minimum() -> None:
    """Newest first: of a job that is left alone only as many go as are above its minimum, however often one looks."""
    world = cluster([gpus(2, "n1"), gpus(1, "n2")], {"a": quota(0)}, policy=newest(restarts_per_hour=0))
    gang(world, ("n1", 0, 1, ""), ("n1", 1, 1, ""), ("n2", 0, 1, ""), min_available=1)
    world.pending("urgent", gpu=1, count=3, priority=75)
    assert world.plan().evictions == ()
    world.jobs[-1] = replace(world.jobs[-1], tasks=world.jobs[-1].tasks[:2])
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert len(decided.evictions) == 2


def test_two_change_places() -> None:
    """A job that is small moves to where a large one was, and the large one to where it was alone, though the small
    one must be near the large: then there is room for a third."""
    world = cluster([gpus(2, "n1"), gpus(3, "n2")], {"a": quota(0)})
    world.nodes = [replace(node, labels={"rack": "r"}) for node in world.nodes]
    world.nodes[0] = replace(world.nodes[0], pods=1)
    world.running("large", "n2", [1, 2], gpu=2, labels={"app": "v"})
    world.running("small", "n1", [0], priority=75, pod_affinity=PodAffinityTerm((("app", "v"),), "rack"))
    world.running("other", "n2", [0], priority=75, preemptible=False)
    world.pending("third", gpu=1)
    rested = settle(world.snapshot(), world.policy, world.now, False)
    places = {task.name: task.node for job in rested.jobs for task in job.tasks if task.state is TaskState.RUNNING}
    assert places == {"large-0-0": "n1", "small-0-0": "n2", "other-0-0": "n2", "third-0-0": "n2"}


def test_two_change_places_for_one_that_must_be_somewhere() -> None:
    """So they do for a job that must be in one part of the cluster, and it comes to be there."""
    world = cluster([gpus(1, "n1", labels={"rack": "r"}), gpus(2, "n2", labels={"rack": "r"}, pods=2)], {"a": quota(0)})
    world.topologies = {"default": ("rack",)}
    world.running("whole", "n1", [0]).running("stays", "n2", [0]).running("part", "n2", [1], gpu=0.5)
    world.pending("near", gpu=0.5, topology_constraint=TopologyConstraint(required="rack"))
    assert "near-0-0" in rest(world)


def test_more_go_than_are_in_the_way() -> None:
    """Inside a queue somebody makes way whose place is not needed, where the queue would otherwise grow beyond its
    share while another is short of its own."""
    world = cluster([gpus(4, "n1"), gpus(2, "n2")], {"a": quota(0), "b": quota(2, over_quota=False)})
    gang(world, ("n1", 1, 1, ""), ("n1", 2, 1, ""), min_available=1)
    world.running("single", "n1", [3], queue="a").running("other", "n1", [0], queue="b")
    world.pending("short", gpu=2, queue="b")
    world.job("urgent", "a", *(Task(f"urgent-{index}", request(2)) for index in range(2)), priority=75)
    decided = world.plan()
    check(world.snapshot(), world.policy, decided, world.now)
    assert {one.task for one in decided.evictions} == {"gang-0", "gang-1", "single-0-0"}
    assert {"urgent-0", "urgent-1", "other-0-0"} <= rest(world)
