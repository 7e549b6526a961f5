"""The state of a pool: what is free on each node now and after release, and the undo log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.planner import Device, Node, PodAffinityTerm, Policy
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, NOMINATED, PENDING, RELEASING, RUNNING, TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import FreeResources, NodeState
from support.planner import TaskState, World, cluster, gpus, quota, request


def busy_world() -> World:
    """Whole GPUs, fractions, GPU memory, CPU-only tasks, anti-affinity, an evicted and a nonpreemptible task."""
    world = cluster(
        [gpus(3, "n1", 10_000, labels={"rack": "r"}), gpus(2, "n2", 24_000, cpu=4000), gpus(0, "n3")],
        {"d": quota(4), "a": quota(2, parent="d"), "b": quota(2)},
    )
    world.running("a1", "n1", [0]).running("a2", "n1", [1], gpu=0.4).running("b1", "n2", [0], "b", preemptible=False)
    world.running("a3", "n1", [1], gpu=0.3, labels={"app": "x"}).running("b2", "n2", [1], "b", state=TaskState.EVICTED)
    world.pending("p1", gpu=1).pending("p2", "b", gpu=0.5).pending("p3", mib=6000, on=2).pending("p4", cpu=3000)
    world.pending("p5", gpu=0.2, labels={"app": "x"}, pod_anti_affinity=PodAffinityTerm((("app", "x"),), "rack"))
    return world.pending("p6", "b", gpu=2, preemptible=False)


def visible_state(state: CycleState) -> dict[str, Any]:
    """Everything that a search can read."""
    pool = state.pool
    members = [member for job in state.jobs for member in job.members]
    counts = {rule: {key: n for key, n in parts.items() if n} for rule, parts in pool.pod_affinity.terms.items()}
    return {
        "nodes": [(_view(node.now), _view(node.after_release)) for node in pool.nodes],
        "free": pool.free,
        "order": pool._order[:],
        "shared devices": set(pool._nodes_with_shared_device),
        "cpu order": pool._cpu_order and pool._cpu_order[:],
        "unplaceable": list(pool._unplaceable),
        "queues": {name: (queue.used[:], queue.nonpreemptible[:]) for name, queue in state.tree.queues.items()},
        "tasks": [
            (member.state, member.node and member.node.name, member.allocs, member.node and member.amount)
            for member in members
        ],
        "pod affinity": counts,
    }


def _view(view: FreeResources) -> tuple[object, ...]:
    return (view.cpu, view.memory, view.pods, view.milli[:], view.mib[:], view.whole)


def check(state: CycleState) -> None:
    """What is updated incrementally equals what is computed from scratch."""
    pool = state.pool
    for node in pool.nodes:
        for view in (node.now, node.after_release):
            allocs = zip(view.milli, view.mib, node.sizes, strict=True)
            assert view.whole == sum(milli == GPU and mib == size for milli, mib, size in allocs)
    assert pool._order == sorted(pool._key(node) for node in pool.nodes if node.sizes)
    assert pool._nodes_with_shared_device == {node.id for node in pool.nodes if node.sizes and node.has_shared_device()}
    assert pool.free == sum(sum(node.after_release.milli) for node in pool.nodes)


def act(state: CycleState, action: str, which: int) -> None:
    """Apply an action to one of the tasks that allow it."""
    pool, placer = state.pool, state.placer
    members = [member for job in state.jobs for member in job.members]

    def one_of(fitting: list[TaskSlot]) -> TaskSlot | None:
        return fitting[which % len(fitting)] if fitting else None

    match action:
        case "place" | "nominate":
            if member := one_of([m for m in members if m.state is PENDING]):
                task_class = placer.task_class(member)
                if node := pool.find(task_class, action == "nominate"):
                    pool.place(member, task_class, node, action == "nominate")
        case "evict":
            if member := one_of([m for m in members if m.state is RUNNING and not m.job.nonpreemptible]):
                pool.evict(member)
        case "cancel eviction":
            evicted = [m for m in members if m.state is RELEASING and m.task.state is TaskState.RUNNING]
            if member := one_of([m for m in evicted if pool.can_cancel_eviction(m)]):
                pool.cancel_eviction(member)
        case "move":
            evicted = [m for m in members if m.state is RELEASING and m.task.state is TaskState.RUNNING]
            if (member := one_of(evicted)) and (node := pool.find(placer.task_class(member))):
                pool.place(member, placer.task_class(member), node)
        case "defer":
            if member := one_of([m for m in members if m.state is BOUND]):
                pool.defer(member)
        case "start":
            if member := one_of([m for m in members if m.state is NOMINATED and pool.can_start(m)]):
                pool.start(member)
        case "withdraw":
            if member := one_of([m for m in members if m.state is NOMINATED and m.origin is None]):
                pool.withdraw(member)


ACTIONS = st.sampled_from(
    ["place", "nominate", "evict", "evict", "cancel eviction", "move", "defer", "start", "withdraw"]
)
TRIALS = st.sampled_from(["savepoint", "rollback"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(ACTIONS, TRIALS), st.integers(0, 20)), max_size=40),
    st.sampled_from([Policy(), Policy(gpu="spread", cpu="spread", device="spread")]),
)
def test_rollback_restores_the_state(script: list[tuple[str, int]], policy: Policy) -> None:
    """A rollback takes back exactly what was done since its savepoint, also with nested trials."""
    world = busy_world()
    world.policy = policy
    state = world.cycle_state()
    state.pool.find(state.placer.task_class(state.jobs[-3].members[0]))  # makes the order by CPU
    savepoints = [(visible_state(state), state.pool.savepoint())]
    for action, which in script:
        if action == "savepoint":
            savepoints.append((visible_state(state), state.pool.savepoint()))
        elif action == "rollback" and len(savepoints) > 1:
            before, savepoint = savepoints.pop()
            state.pool.rollback(savepoint)
            assert visible_state(state) == before
        else:
            act(state, action, which)
        check(state)
    for before, savepoint in reversed(savepoints):
        state.pool.rollback(savepoint)
        assert visible_state(state) == before


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([250, 500, 1000])), max_size=8))
def test_release_reverses_allocate(parts: list[tuple[int, int]]) -> None:
    """Allocating and then releasing leaves the node as it was."""
    node = NodeState(Node("n", tuple(Device(index, 8000) for index in range(3)), 4000, 1 << 30), 0)
    before = _view(node.after_release)
    allocs = [(device, milli, 8 * milli) for device, milli in parts]
    for alloc in allocs:
        node.allocate(node.after_release, 100, 10, [alloc])
    for alloc in reversed(allocs):
        node.release(node.after_release, 100, 10, [alloc])
    assert _view(node.after_release) == before


def test_evicted_devices_are_free_after_release() -> None:
    """On the devices of an evicted task another task can be nominated, not started."""
    state = cluster([gpus(1, "n1")], {"a": quota(1)}).running("old", "n1", [0]).pending("new", gpu=1).cycle_state()
    new, old = state.jobs[0].members[0], state.jobs[1].members[0]
    task_class = state.placer.task_class(new)
    assert state.pool.find(task_class) is None
    state.pool.evict(old)
    node = state.pool.find(task_class)
    assert node is not None
    assert (node.now.whole, node.after_release.whole, state.pool.starts_now(task_class, node)) == (0, 1, False)
    state.pool.place(new, task_class, node)
    assert new.state is NOMINATED


def test_views_are_one_object_until_an_eviction() -> None:
    """The two views of a node are one object as long as no task terminates."""
    state = cluster([gpus(2, "n1")], {"a": quota(1)}).running("old", "n1", [0]).cycle_state()
    node = state.pool.nodes[0]
    assert node.now is node.after_release
    state.pool.evict(state.jobs[0].members[0])
    assert node.now is not node.after_release


def test_unhealthy_devices_are_ignored() -> None:
    """A share of an unhealthy device is not counted."""
    node = NodeState(Node("n", (Device(0, 8000, healthy=False), Device(1, 8000))), 0)
    share = request(1).share_of(Device(0, 8000))
    assert (node.after_release.whole, node.allocs_of([share])) == (1, ())


def test_devices_of_a_stuck_task() -> None:
    """A task that terminates for longer than the grace period keeps its devices."""
    world = cluster([gpus(1, "n1")], {"a": quota(1)}, policy=Policy(terminating_grace=30))
    task = world.task("old-0-0", "n1", [0], state=TaskState.RELEASING)
    for since, free in ((world.now - 31, 0), (world.now - 29, 1)):
        world.jobs = []
        world.job("old", "a", replace(task, releasing_since=since))
        assert world.cycle_state().pool.nodes[0].after_release.whole == free
