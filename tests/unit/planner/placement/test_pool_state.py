"""The room: what is free on every node now and soon, and a log that takes everything back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.planner import Device, Node, PodAffinityTerm, Policy
from aliquot.planner.cycle_state import CycleState
from aliquot.planner.jobs import BOUND, PENDING, RESERVED, RUNNING, STOPPED, TaskSlot
from aliquot.planner.model import GPU
from aliquot.planner.placement.node_state import FreeResources, NodeState
from support.planner import TaskState, World, cluster, gpus, quota, request


def busy_world() -> World:
    """Whole GPUs, parts, memory, work without GPUs, neighbours, somebody who leaves, one who cannot be stopped."""
    world = cluster(
        [gpus(3, "n1", 10_000, labels={"rack": "r"}), gpus(2, "n2", 24_000, cpu=4000), gpus(0, "n3")],
        {"d": quota(4), "a": quota(2, parent="d"), "b": quota(2)},
    )
    world.running("a1", "n1", [0]).running("a2", "n1", [1], gpu=0.4).running("b1", "n2", [0], "b", preemptible=False)
    world.running("a3", "n1", [1], gpu=0.3, labels={"app": "x"}).running("b2", "n2", [1], "b", state=TaskState.EVICTED)
    world.pending("p1", gpu=1).pending("p2", "b", gpu=0.5).pending("p3", mib=6000, on=2).pending("p4", cpu=3000)
    world.pending("p5", gpu=0.2, labels={"app": "x"}, apart=PodAffinityTerm((("app", "x"),), "rack"))
    return world.pending("p6", "b", gpu=2, preemptible=False)


def picture(scene: CycleState) -> dict[str, Any]:
    """All that a search can see."""
    room = scene.room
    members = [member for job in scene.jobs for member in job.members]
    counts = {rule: {key: n for key, n in parts.items() if n} for rule, parts in room.neighbours.watched.items()}
    return {
        "nodes": [(_view(node.now), _view(node.soon)) for node in room.nodes],
        "free": room.free,
        "order": room._order[:],
        "busy": set(room._busy),
        "cpu order": room._cpu_order and room._cpu_order[:],
        "hopeless": list(room._hopeless),
        "queues": {name: (queue.used[:], queue.fixed[:]) for name, queue in scene.tree.queues.items()},
        "tasks": [(one.state, one.node and one.node.name, one.rows, one.node and one.amount) for one in members],
        "neighbours": counts,
    }


def _view(view: FreeResources) -> tuple[object, ...]:
    return (view.cpu, view.memory, view.pods, view.milli[:], view.mib[:], view.whole)


def check(scene: CycleState) -> None:
    """What is kept up to date is what would come out if it were made anew."""
    room = scene.room
    for node in room.nodes:
        for view in (node.now, node.soon):
            rows = zip(view.milli, view.mib, node.sizes, strict=True)
            assert view.whole == sum(milli == GPU and mib == size for milli, mib, size in rows)
    assert room._order == sorted(room._key(node) for node in room.nodes if node.sizes)
    assert room._busy == {node.id for node in room.nodes if node.sizes and node.is_busy()}
    assert room.free == sum(sum(node.soon.milli) for node in room.nodes)


def act(scene: CycleState, what: str, which: int) -> None:
    """Do something to one of those that it can be done to."""
    room, placer = scene.room, scene.placer
    members = [member for job in scene.jobs for member in job.members]

    def one_of(fitting: list[TaskSlot]) -> TaskSlot | None:
        return fitting[which % len(fitting)] if fitting else None

    match what:
        case "place" | "promise":
            if member := one_of([one for one in members if one.state == PENDING]):
                kind = placer.kind(member)
                if node := room.find(kind, what == "promise"):
                    room.place(member, kind, node, what == "promise")
        case "stop":
            if member := one_of([one for one in members if one.state == RUNNING and not one.job.fixed]):
                room.stop(member)
        case "keep":
            stopped = [one for one in members if one.state == STOPPED and one.task.state is TaskState.RUNNING]
            if member := one_of([one for one in stopped if room.can_keep(one)]):
                room.keep(member)
        case "move":
            stopped = [one for one in members if one.state == STOPPED and one.task.state is TaskState.RUNNING]
            if (member := one_of(stopped)) and (node := room.find(placer.kind(member))):
                room.place(member, placer.kind(member), node)
        case "defer":
            if member := one_of([one for one in members if one.state == BOUND]):
                room.defer(member)
        case "start":
            if member := one_of([one for one in members if one.state == RESERVED and room.can_start(one)]):
                room.start(member)
        case "withdraw":
            if member := one_of([one for one in members if one.state == RESERVED and one.home is None]):
                room.withdraw(member)


ACTIONS = st.sampled_from(["place", "promise", "stop", "stop", "keep", "move", "defer", "start", "withdraw"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.one_of(ACTIONS, st.sampled_from(["mark", "undo"])), st.integers(0, 20)), max_size=40),
    st.sampled_from([Policy(), Policy(gpu="spread", cpu="spread", device="spread")]),
)
def test_undo_leaves_the_room_as_it_was(script: list[tuple[str, int]], policy: Policy) -> None:
    """Whatever was done since a mark, in whatever order and with trials inside trials, undo takes it back exactly."""
    world = busy_world()
    world.policy = policy
    scene = world.scene()
    scene.room.find(scene.placer.kind(scene.jobs[-3].members[0]))  # from now on there is an order by CPU as well
    marks = [(picture(scene), scene.room.mark())]
    for what, which in script:
        if what == "mark":
            marks.append((picture(scene), scene.room.mark()))
        elif what == "undo" and len(marks) > 1:
            before, mark = marks.pop()
            scene.room.undo(mark)
            assert picture(scene) == before
        else:
            act(scene, what, which)
        check(scene)
    for before, mark in reversed(marks):
        scene.room.undo(mark)
        assert picture(scene) == before


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([250, 500, 1000])), max_size=8))
def test_give_is_the_reverse_of_take(parts: list[tuple[int, int]]) -> None:
    """What is taken of a node's rows and given back leaves nothing behind."""
    node = NodeState(Node("n", tuple(Device(index, 8000) for index in range(3)), 4000, 1 << 30), 0)
    before = _view(node.soon)
    taken = [(row, milli, 8 * milli) for row, milli in parts]
    for row in taken:
        node.take(node.soon, 100, 10, [row])
    for row in reversed(taken):
        node.give(node.soon, 100, 10, [row])
    assert _view(node.soon) == before


def test_stopping_frees_soon_not_now() -> None:
    """The place of somebody who is stopped can be promised, not given."""
    scene = cluster([gpus(1, "n1")], {"a": quota(1)}).running("old", "n1", [0]).pending("new", gpu=1).scene()
    new, old = scene.jobs[0].members[0], scene.jobs[1].members[0]
    kind = scene.placer.kind(new)
    assert scene.room.find(kind) is None
    scene.room.stop(old)
    node = scene.room.find(kind)
    assert node is not None
    assert (node.now.whole, node.soon.whole, scene.room.starts(kind, node)) == (0, 1, False)
    scene.room.place(new, kind, node)
    assert new.state == RESERVED


def test_now_and_soon_are_one_until_somebody_leaves() -> None:
    """A node on which nobody leaves is kept once."""
    scene = cluster([gpus(2, "n1")], {"a": quota(1)}).running("old", "n1", [0]).scene()
    node = scene.room.nodes[0]
    assert node.now is node.soon
    scene.room.stop(scene.jobs[0].members[0])
    assert node.now is not node.soon


def test_broken_devices_are_no_rows() -> None:
    """A share of a device that is gone counts nowhere."""
    node = NodeState(Node("n", (Device(0, 8000, healthy=False), Device(1, 8000))), 0)
    share = request(1).share_of(Device(0, 8000))
    assert (node.soon.whole, node.rows_of([share])) == (1, ())


def test_stuck_place_is_not_promised() -> None:
    """Who takes too long to leave keeps its place."""
    world = cluster([gpus(1, "n1")], {"a": quota(1)}, policy=Policy(terminating_grace=30))
    task = world.task("old-0-0", "n1", [0], state=TaskState.RELEASING)
    for since, soon in ((world.now - 31, 0), (world.now - 29, 1)):
        world.jobs = []
        world.job("old", "a", replace(task, releasing_since=since))
        assert world.scene().room.nodes[0].soon.whole == soon
