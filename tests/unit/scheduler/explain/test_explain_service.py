"""The live scheduler's last decision: what is told from it, and what comes of it when it is played again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml

from aliquot.cli.output import as_yaml
from aliquot.errors import Unavailable
from aliquot.planner import Plan, TaskState, plan
from aliquot.scheduler.explain.service import Explainer
from aliquot.scheduler.last_decision import Decision, LastDecision
from aliquot.sim import Player, worlds
from aliquot.sim.export import scenario_of
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.stores.running import until


@asynccontextmanager
async def crowded(place: StoreNamespace) -> AsyncIterator[World]:
    """Running, a fraction among them; over quota; stopped and still there; promised its place; waiting, of two projects
    with the same name."""
    world = World(place)
    await world.node("n1", 4)
    await world.project("a", 0)
    await world.project("b", 2)
    async with world.living(holds=True):
        for name, gpu in (("one", 1000), ("half", 500), ("two", 2000)):
            await world.submit(name, gpu)
            await world.runs(name)
        await world.submit("owner", 2000, "b")

        async def settled() -> bool:
            return "reserved" in states(world.last).get("runai-b/owner", ())

        await until(settled)
        await world.submit("late", 4000)
        await world.submit("late", 4000, "b")
        await world.waits("late")
        await world.waits("late", "b")
        yield world


def states(last: LastDecision) -> dict[str, list[str]]:
    try:
        jobs = last.get().jobs
    except Unavailable:
        return {}
    return {name: [task.state.value for task in job.tasks] for name, job in jobs.items()}


def played(decision: Decision) -> tuple[Any, Plan]:
    """Through the text of a file: the result of `simulate`, and the plan behind it."""
    data = yaml.load(as_yaml(scenario_of(decision)), yaml.CSafeLoader)
    (read,) = worlds(data)
    decided = plan(read.snapshot(), read.policy, read.now, read.policies)
    return Player(read).play()["rounds"][0], decided


def timeless(decided: Plan) -> Plan:
    """Moments are counted from another zero, and tasks that share a name are told apart, in a file."""

    def bare(task: str) -> str:
        return task.rpartition("/")[2]

    refusals = {
        name: tuple(replace(one, until=None) for one in reasons) for name, reasons in decided.refusals.items()
    }  # fmt: skip
    return replace(
        decided,
        refusals=refusals,
        binds=tuple(replace(one, task=bare(one.task)) for one in decided.binds),
        nominations=tuple(replace(one, task=bare(one.task)) for one in decided.nominations),
        evictions=tuple(replace(one, task=bare(one.task)) for one in decided.evictions),
    )


async def test_played_again(embedded: StoreNamespace) -> None:
    """The file that is written gives the live decision, to the last word."""
    async with crowded(embedded) as world:
        decision = world.last.get()
        shown = {state for job in decision.snapshot.jobs for state in (task.state for task in job.tasks)}
        assert shown == {TaskState.RUNNING, TaskState.RELEASING, TaskState.NOMINATED, TaskState.PENDING}
        told, decided = played(decision)
        assert timeless(decided) == timeless(decision.plan)
        assert {name: [one["text"] for one in reasons] for name, reasons in told["refusals"].items()} == {
            name: [one.text for one in reasons] for name, reasons in decision.plan.refusals.items()
        }
        assert told["tasks"]["owner-0-0"]["state"] == "reserved"


async def test_told_while_it_works(embedded: StoreNamespace) -> None:
    """Everybody is told how he stands: who runs, who is leaving, who is promised a place, who waits."""
    async with crowded(embedded) as world:
        explainer = Explainer(world.last)
        found = {}
        for name, project in (("half", "a"), ("two", "a"), ("owner", "b"), ("late", "a"), ("late", "b")):
            workload = await world.workload(name, project)
            found[project, name] = await explainer.explain(workload, lambda _: True, what_if=True)
        assert {key: told["state"] for key, told in found.items()} == {
            ("a", "half"): "running",
            ("a", "two"): "stopping",
            ("b", "owner"): "promised",
            ("a", "late"): "waiting",
            ("b", "late"): "waiting",
        }
        text = {key: " ".join(line["text"] for line in told["lines"]) for key, told in found.items()}
        assert "reclaimed by b/owner" in text["a", "two"]
        assert "when a/two has left, in" in text["b", "owner"]
        assert "and number 1 of 2 of all projects" in text["b", "late"]
        assert found["a", "late"]["tried"] > 0


async def test_asked_by_many(embedded: StoreNamespace) -> None:
    """However many ask at once, it is worked out once, and all get the same answer."""
    async with crowded(embedded) as world:
        explainer = Explainer(world.last, clock=lambda: 0.0)
        late = await world.workload("late")
        answers = await asyncio.gather(*(explainer.explain(late, lambda _: True, what_if=True) for _ in range(20)))
        assert all(answer == answers[0] for answer in answers)


def test_nothing_decided_yet() -> None:
    """Before its first plan the scheduler has nothing to say."""
    with pytest.raises(Unavailable, match="has not decided"):
        LastDecision().get()
