"""A result as tables for people: per round, what projects have and what becomes of workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aliquot.planner.model import DEFAULT_POOL
from aliquot.sim.records import Scenario
from aliquot.sim.references import task_names
from aliquot.sim.world import World
from aliquot.units import whole_units


class Table(NamedTuple):
    heading: str
    titles: tuple[str, ...]
    rows: list[list[str]]


def tables(world: World, told: Mapping[str, Any]) -> Iterator[Table]:
    projects, owners = _belongings(world.scenario)
    word = "step" if "steps" in told else "round"
    pictures = [(f"{word} {index}", each) for index, each in enumerate(told[f"{word}s"], start=1)]
    for heading, picture in [*pictures, ("final", told["final"])]:
        title = f"{told['name']}: {heading}" if told["name"] else heading
        yield Table(title, ("PROJECT", "QUOTA", "FAIR SHARE", "ALLOCATED"), _queues(world, projects, picture))
        yield Table("", ("WORKLOAD", "PROJECT", "STATE", "GPUs", "NODE", "WHY"), _workloads(projects, owners, picture))


def _belongings(scenario: Scenario) -> tuple[dict[str, str], dict[str, str]]:
    """Projects by workload, and workloads by task; also of those that are gone by now."""
    projects: dict[str, str] = {}
    owners: dict[str, str] = {}
    submitted = [each for step in scenario.steps if step.word == "submit" for each in step.operands]
    for spec in (*scenario.workloads, *submitted):
        projects[spec.name] = spec.project
        owners |= dict.fromkeys(task_names(spec), spec.name)
    return projects, owners


def _queues(world: World, projects: Mapping[str, str], picture: Mapping[str, Any]) -> list[list[str]]:
    held: dict[str, float] = {}
    for name, workload in picture["workloads"].items():
        held[projects[name]] = held.get(projects[name], 0) + workload["allocated"]["gpu"]
    rows = []
    for name, share in picture["fairShare"].items():
        quota = world.queues[name].pool_quota(DEFAULT_POOL).quota[0]
        shown = "unlimited" if quota is None else f"{whole_units(quota):g}"
        rows.append([name, shown, f"{share['gpu']:g}", f"{round(held.get(name, 0), 3):g}"])
    return rows


def _workloads(projects: Mapping[str, str], owners: Mapping[str, str], picture: Mapping[str, Any]) -> list[list[str]]:
    tasks: dict[str, list[Any]] = {}
    for name, task in picture["tasks"].items():
        tasks.setdefault(owners[name], []).append(task)
    return [
        [name, projects[name], each["state"], f"{each['allocated']['gpu']:g}", *_where_and_why(tasks.get(name, []))]
        for name, each in picture["workloads"].items()
    ]


def _where_and_why(tasks: list[Any]) -> tuple[str, str]:
    nodes = dict.fromkeys(task["node"] for task in tasks if task["node"])
    reasons = [task["because"] or (task["refusal"] or {}).get("text") for task in tasks]
    return ", ".join(nodes), next((reason for reason in reasons if reason), "")
