"""The live scheduler's last decision: explanations from it, and the same decision from its exported scenario."""

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
from aliquot.sim import Simulation, load_clusters
from aliquot.sim.export import export_scenario
from support.scheduler.world import World
from support.stores.namespace import StoreNamespace
from support.waiting import eventually


@asynccontextmanager
async def crowded(namespace: StoreNamespace) -> AsyncIterator[World]:
    """Jobs in every state: running (one with a fraction), over quota, stopping, nominated, and waiting in two projects
    under the same name."""
    world = World(namespace)
    await world.node("n1", 4)
    await world.project("a", 0)
    await world.project("b", 2)
    async with world.platform(hold_deleted=True):
        for name, gpu in (("one", 1000), ("half", 500), ("two", 2000)):
            await world.submit(name, gpu)
            await world.until_running(name)
        await world.submit("owner", 2000, "b")

        async def settled() -> bool:
            return "reserved" in states(world.last).get("runai-b/owner", ())

        await eventually(settled)
        await world.submit("late", 4000)
        await world.submit("late", 4000, "b")
        await world.until_refused("late")
        await world.until_refused("late", "b")
        yield world


def states(last: LastDecision) -> dict[str, list[str]]:
    try:
        jobs = last.get().jobs
    except Unavailable:
        return {}
    return {name: [task.state.value for task in job.tasks] for name, job in jobs.items()}


def simulate(decision: Decision) -> tuple[Any, Plan]:
    """Plays the exported scenario: returns the result of `simulate`, and the plan behind it."""
    data = yaml.load(as_yaml(export_scenario(decision)), yaml.CSafeLoader)
    (world,) = load_clusters(data)
    planned = plan(world.snapshot(), world.policy, world.now, world.policies)
    return Simulation(world).run()["rounds"][0], planned


def without_times(planned: Plan) -> Plan:
    """A file counts times from another zero, and distinguishes tasks that share a name."""

    def bare(task: str) -> str:
        return task.rpartition("/")[2]

    refusals = {
        name: tuple(replace(refusal, until=None) for refusal in reasons) for name, reasons in planned.refusals.items()
    }  # fmt: skip
    return replace(
        planned,
        refusals=refusals,
        binds=tuple(replace(bind, task=bare(bind.task)) for bind in planned.binds),
        nominations=tuple(replace(nomination, task=bare(nomination.task)) for nomination in planned.nominations),
        evictions=tuple(replace(eviction, task=bare(eviction.task)) for eviction in planned.evictions),
    )


async def test_exported_scenario(embedded: StoreNamespace) -> None:
    """The exported scenario leads to the live decision, word for word."""
    async with crowded(embedded) as world:
        decision = world.last.get()
        shown = {state for job in decision.snapshot.jobs for state in (task.state for task in job.tasks)}
        assert shown == {TaskState.RUNNING, TaskState.RELEASING, TaskState.NOMINATED, TaskState.PENDING}
        result, planned = simulate(decision)
        assert without_times(planned) == without_times(decision.plan)
        assert {name: [refusal["text"] for refusal in reasons] for name, reasons in result["refusals"].items()} == {
            name: [refusal.text for refusal in reasons] for name, reasons in decision.plan.refusals.items()
        }
        assert result["tasks"]["owner-0-0"]["state"] == "reserved"


async def test_every_state(embedded: StoreNamespace) -> None:
    """The explanation of a job in each state: running, stopping, nominated, waiting."""
    async with crowded(embedded) as world:
        explainer = Explainer(world.last)
        answers = {}
        for name, project in (("half", "a"), ("two", "a"), ("owner", "b"), ("late", "a"), ("late", "b")):
            workload = await world.workload(name, project)
            answers[project, name] = await explainer.explain(workload, lambda _: True, what_if=True)
        assert {key: answer["state"] for key, answer in answers.items()} == {
            ("a", "half"): "running",
            ("a", "two"): "stopping",
            ("b", "owner"): "promised",
            ("a", "late"): "waiting",
            ("b", "late"): "waiting",
        }
        text = {key: " ".join(line["text"] for line in answer["lines"]) for key, answer in answers.items()}
        assert "reclaimed by b/owner" in text["a", "two"]
        assert "when a/two has left, in" in text["b", "owner"]
        assert "and number 1 of 2 of all projects" in text["b", "late"]
        assert answers["a", "late"]["tried"] > 0


async def test_concurrent_requests(embedded: StoreNamespace) -> None:
    """Requests at the same time are computed once, and all get the same answer."""
    async with crowded(embedded) as world:
        explainer = Explainer(world.last, clock=lambda: 0.0)
        late = await world.workload("late")
        answers = await asyncio.gather(*(explainer.explain(late, lambda _: True, what_if=True) for _ in range(20)))
        assert all(answer == answers[0] for answer in answers)


def test_no_decision_yet() -> None:
    """Before the first plan there is nothing to explain."""
    with pytest.raises(Unavailable, match="has not decided"):
        LastDecision().get()
