"""A result as tables for people: per round or step, the GPUs of each project and the state of each workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aliquot.planner.model import DEFAULT_POOL
from aliquot.sim.cluster import SimulatedCluster
from aliquot.sim.references import task_names
from aliquot.sim.scenario_spec import Scenario
from aliquot.units import whole_units


class Table(NamedTuple):
    heading: str
    titles: tuple[str, ...]
    rows: list[list[str]]


def tables(cluster: SimulatedCluster, result: Mapping[str, Any]) -> Iterator[Table]:
    projects, workloads = _ownership(cluster.scenario)
    unit = "step" if "steps" in result else "round"
    reports = [(f"{unit} {index}", report) for index, report in enumerate(result[f"{unit}s"], start=1)]
    for heading, report in [*reports, ("final", result["final"])]:
        title = f"{result['name']}: {heading}" if result["name"] else heading
        yield Table(title, ("PROJECT", "QUOTA", "FAIR SHARE", "ALLOCATED"), _queues(cluster, projects, report))
        yield Table(
            "", ("WORKLOAD", "PROJECT", "STATE", "GPUs", "NODE", "WHY"), _workloads(projects, workloads, report)
        )


def _ownership(scenario: Scenario) -> tuple[dict[str, str], dict[str, str]]:
    """Projects by workload, and workloads by task; also of workloads that have ended."""
    projects: dict[str, str] = {}
    workloads: dict[str, str] = {}
    for spec in (*scenario.workloads, *scenario.submitted):
        projects[spec.name] = spec.project
        workloads |= dict.fromkeys(task_names(spec), spec.name)
    return projects, workloads


def _queues(cluster: SimulatedCluster, projects: Mapping[str, str], report: Mapping[str, Any]) -> list[list[str]]:
    allocated: dict[str, float] = {}
    for name, workload in report["workloads"].items():
        allocated[projects[name]] = allocated.get(projects[name], 0) + workload["allocated"]["gpu"]
    rows = []
    for name, share in report["fairShare"].items():
        quota = cluster.queues[name].pool_quota(DEFAULT_POOL).quota[0]
        quota_text = "unlimited" if quota is None else f"{whole_units(quota):g}"
        rows.append([name, quota_text, f"{share['gpu']:g}", f"{round(allocated.get(name, 0), 3):g}"])
    return rows


def _workloads(projects: Mapping[str, str], workloads: Mapping[str, str], report: Mapping[str, Any]) -> list[list[str]]:
    tasks: dict[str, list[Any]] = {}
    for name, task in report["tasks"].items():
        tasks.setdefault(workloads[name], []).append(task)
    return [
        [
            name,
            projects[name],
            entry["state"],
            f"{entry['allocated']['gpu']:g}",
            *_nodes_and_reason(tasks.get(name, [])),
        ]
        for name, entry in report["workloads"].items()
    ]


def _nodes_and_reason(tasks: list[Any]) -> tuple[str, str]:
    nodes = dict.fromkeys(task["node"] for task in tasks if task["node"])
    reasons = [task["because"] or (task["refusal"] or {}).get("text") for task in tasks]
    return ", ".join(nodes), next((reason for reason in reasons if reason), "")
