"""The tasks of a job that start together, the alternatives to them, and the tasks that are evicted together."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.planner import Job, Node, SubGroup, Task, TaskState
from aliquot.planner.jobs import ABSENT, PENDING, RUNNING, JobState, TaskSlot
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.queues.queue_tree import QueueTree
from support.planner import quota, request

NODE = NodeState(Node("n"), 0)


def job_state(tasks: str, subgroups: tuple[SubGroup, ...] = (), **more: Any) -> JobState:
    """Tasks as letters: r is running, p pending, s succeeded, g gated; a word for each subgroup, `name:letters`."""
    queue = QueueTree([quota(0)], "default").queues[""]
    states = {"r": TaskState.RUNNING, "p": TaskState.PENDING, "s": TaskState.SUCCEEDED, "g": TaskState.GATED}
    made: list[Task] = []
    for word in tasks.split():
        subgroup, _, letters = word.rpartition(":")
        for index, letter in enumerate(letters):
            made.append(Task(f"{subgroup}{index}", request(1), states[letter], subgroup=subgroup))
    job_state = JobState(Job("j", "", tuple(made), subgroups=subgroups, **more), queue)
    for task in made:
        state = {TaskState.RUNNING: RUNNING, TaskState.PENDING: PENDING}.get(task.state, ABSENT)
        member = TaskSlot(job_state, task, state)
        if state is RUNNING:
            member.node, member.origin = NODE, (NODE, (), (1000, 0, 0))
        job_state.members.append(member)
    return job_state


def names(members: list[TaskSlot]) -> str:
    return " ".join(member.task.name for member in members)


AB = (SubGroup("a"), SubGroup("b"))


@pytest.mark.parametrize(
    ("tasks", "more", "expected"),
    [
        pytest.param("p", {}, "0", id="one task"),
        pytest.param("r", {}, "", id="nothing waits"),
        pytest.param("ppp", {}, "0 1 2", id="a gang starts whole"),
        pytest.param("rrp", {}, "2", id="the missing task of a gang"),
        pytest.param("ppp", {"min_available": 2}, "0 1", id="its minimum first"),
        pytest.param("rrpp", {"min_available": 2}, "2", id="above its minimum one by one"),
        pytest.param("pp", {"min_available": 3}, "", id="too few tasks exist"),
        pytest.param("pg", {}, "", id="a gang waits for its gated task"),
        pytest.param("sp", {}, "1", id="a task that succeeded is not needed again"),
        pytest.param("spp", {"min_available": 2}, "1", id="a task that succeeded counts towards the minimum"),
        pytest.param("a:pp b:pp", {"subgroups": AB}, "a0 a1 b0 b1", id="all subgroups"),
        pytest.param("a:rr b:pp", {"subgroups": AB}, "b0 b1", id="the subgroup that is missing"),
        pytest.param("a:pp b:p", {"subgroups": AB, "min_subgroups": 1}, "b0", id="the subgroup that lacks the least"),
        pytest.param("a:rr b:pp", {"subgroups": AB, "min_subgroups": 1}, "b0 b1", id="an extra subgroup starts whole"),
        pytest.param(
            "a:ppp b:p",
            {"subgroups": (SubGroup("a", min_available=1), SubGroup("b"))},
            "a0 b0",
            id="minimums of subgroups",
        ),
        pytest.param(
            "x:pp y:p",
            {"subgroups": (SubGroup("x", "o"), SubGroup("y", "o"), SubGroup("o", min_subgroups=1))},
            "y0",
            id="nested",
        ),
    ],
)
def test_next_tasks(tasks: str, more: dict[str, Any], expected: str) -> None:
    """All tasks that are missing to the minimum, or one more."""
    assert names(job_state(tasks, **more).next_tasks()) == expected


@pytest.mark.parametrize(
    ("tasks", "more", "expected"),
    [
        pytest.param("pp", {}, ["0 1"], id="a plain job has one"),
        pytest.param("a:p b:p", {"subgroups": AB}, ["a0 b0"], id="all subgroups are needed"),
        pytest.param("a:pp b:p", {"subgroups": AB, "min_subgroups": 1}, ["b0", "a0 a1"], id="either of them"),
        pytest.param("a:rp b:pp", {"subgroups": AB, "min_subgroups": 1}, ["a1", "b0 b1"], id="least missing first"),
        pytest.param(
            "a:rrp b:rp",
            {"subgroups": (SubGroup("a", min_available=1), SubGroup("b", min_available=1))},
            ["b1", "a2"],
            id="the least full subgroup grows first",
        ),
    ],
)
def test_options(tasks: str, more: dict[str, Any], expected: list[str]) -> None:
    """The alternatives for what starts next; the next tasks are the first."""
    state = job_state(tasks, **more)
    options = [names(members) for members in state.start_options()]
    assert options == expected
    assert options[0] == names(state.next_tasks())


def test_options_are_bounded() -> None:
    """The number of alternatives is bounded, so that plans do not depend on time."""
    subgroups = tuple(SubGroup(f"g{index:02}") for index in range(20))
    tasks = " ".join(f"{subgroup.name}:p" for subgroup in subgroups)
    assert len(list(job_state(tasks, subgroups, min_subgroups=10).start_options())) == 32


@pytest.mark.parametrize(
    ("tasks", "more", "expected"),
    [
        pytest.param("p", {}, [], id="nothing runs"),
        pytest.param("r", {}, ["0"], id="one task"),
        pytest.param("rrr", {}, ["0 1 2"], id="a gang is evicted whole"),
        pytest.param("rrr", {"min_available": 1}, ["2", "1", "0"], id="above the minimum one by one, the last first"),
        pytest.param("rrrr", {"min_available": 2}, ["3", "2", "0 1"], id="then the minimum together"),
        pytest.param("a:rr b:r", {"subgroups": AB}, ["a0 a1 b0"], id="required subgroups are evicted together"),
        pytest.param(
            "a:rrr b:rr",
            {"subgroups": (SubGroup("a", min_available=1), SubGroup("b", min_available=1))},
            ["a2", "b1", "a1", "a0 b0"],
            id="of the fullest subgroup first",
        ),
    ],
)
def test_eviction_units(tasks: str, more: dict[str, Any], expected: list[str]) -> None:
    """Tasks above the minimum are evicted one by one, then all the rest together."""
    assert [names(unit) for unit in job_state(tasks, **more).eviction_units()] == expected


@pytest.mark.parametrize(("tasks", "fullness"), [("pp", 0), ("rp", 1), ("rr", 2)])
def test_order_by_fullness(tasks: str, fullness: int) -> None:
    """Jobs below their minimum come before jobs at it, and these before jobs above it."""
    assert job_state(tasks, min_available=1).order()[1] == fullness


@pytest.mark.parametrize(
    ("tasks", "more", "expected"),
    [
        ("rr", {}, True),
        ("rp", {}, False),
        ("a:r b:p", {"subgroups": AB}, False),
        ("a:r b:p", {"subgroups": AB, "min_subgroups": 1}, True),
    ],
)
def test_satisfied(tasks: str, more: dict[str, Any], expected: bool) -> None:
    """Whether a job has its minimum."""
    assert job_state(tasks, **more).satisfied() is expected


def test_order_of_tasks() -> None:
    """Tasks start by descending order, then by name."""
    state = job_state("ppp", min_available=1)
    state.members[2].task = Task("2", request(1), order=5)
    assert names(state.next_tasks()) == "2"
