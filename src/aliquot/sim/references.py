"""Checks the names in a scenario: every reference names something that exists, and no name appears twice.

Works on the fields that could be read, so that a file's faults of both kinds are reported together. An entry with a
fault of its own is None here, but its name counts as known, so that one mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aliquot.planner.model import DEFAULT_POOL
from aliquot.sim.field_readers import FieldPath
from aliquot.sim.scenario_spec import PLACED_STATES, QueueSpec, Scenario, TaskSpec, TopologySpec, WorkloadSpec

_SINGULAR = {"nodes": "node", "projects": "project", "departments": "department"}


def check_references(scenario: Scenario, raw: Mapping[str, Any], path: FieldPath) -> None:
    known = _KnownNames(scenario, raw)
    _check_unique(raw, "nodes", path, set())
    queues: set[str] = set()
    _check_unique(raw, "departments", path, queues)
    _check_unique(raw, "projects", path, queues)
    if None not in (*scenario.departments, *scenario.projects):  # a tree with missing queues cannot be checked
        _check_tree(scenario, path)
    for index, node in enumerate(scenario.nodes):
        if node and node.mig and node.mig_strategy == "none":
            path.at("nodes", index, "mig").fault("needs migStrategy single or mixed")
    for index, workload in enumerate(scenario.workloads):
        if workload:
            known.submit(workload, path.at("workloads", index), at_start=True)
    for index, step in enumerate(scenario.steps):
        if step:
            known.apply_step(step.action, step.operands, path.at("steps", index, step.action))
    if scenario.now is None:
        _check_relative_times(raw, path)


def _check_unique(raw: Mapping[str, Any], field: str, path: FieldPath, seen: set[str]) -> None:
    for index, name in enumerate(_names(raw.get(field))):
        if name in seen:
            path.at(field, index, "name").fault(f"{name!r} appears twice")
        elif name:
            seen.add(name)


def _names(items: Any) -> list[str]:
    """The names of a list of objects; empty for an object without a valid one."""
    names = [item.get("name") if isinstance(item, dict) else "" for item in items] if isinstance(items, list) else []
    return [name if isinstance(name, str) else "" for name in names]


def _check_tree(scenario: Scenario, path: FieldPath) -> None:
    parents = {queue.name: queue.parent_queue for queue in (*scenario.departments, *scenario.projects)}
    departments = {queue.name for queue in scenario.departments}
    for field, queues in (("departments", scenario.departments), ("projects", scenario.projects)):
        for index, queue in enumerate(queues):
            _check_parent(queue, parents, departments, path.at(field, index))


def _check_parent(queue: QueueSpec, parents: Mapping[str, str], departments: set[str], path: FieldPath) -> None:
    if queue.department and queue.parent:
        path.at("parent").fault("must not be given together with department")
    if queue.department and queue.department not in departments:
        path.at("department").fault(f"no department is called {queue.department!r}")
    elif queue.parent and queue.parent not in parents:
        path.at("parent").fault(f"no project or department is called {queue.parent!r}")
    if _has_cycle(queue.name, parents):
        path.at("parent").fault(f"forms a cycle: {queue.name!r} would be below itself")


def _has_cycle(name: str, parents: Mapping[str, str]) -> bool:
    parent, steps = parents.get(name, ""), 0
    while parent and parent != name and steps <= len(parents):
        parent, steps = parents.get(parent, ""), steps + 1
    return bool(parent)


def _check_relative_times(raw: Mapping[str, Any], path: FieldPath) -> None:
    """Absolute times need the scenario's `now`."""
    items: list[tuple[Any, FieldPath]] = [(raw.get(field), path.at(field)) for field in ("projects", "departments")]
    items.append((raw.get("workloads"), path.at("workloads")))
    steps = raw.get("steps") if isinstance(raw.get("steps"), list) else []
    items += [
        (step.get("submit"), path.at("steps", index, "submit"))
        for index, step in enumerate(steps or [])
        if isinstance(step, dict)
    ]
    for entries, entries_path in items:
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            if not isinstance(entry, dict):
                continue
            _reject_absolute(entry, ("created", "started", "saved", "staleSince"), entries_path.at(index))
            tasks = entry.get("tasks")
            for number, task in enumerate(tasks if isinstance(tasks, list) else []):
                if isinstance(task, dict):
                    _reject_absolute(task, ("terminatingSince",), entries_path.at(index, "tasks", number))


def _reject_absolute(data: Mapping[str, Any], fields: Iterable[str], path: FieldPath) -> None:
    for field in fields:
        if isinstance(data.get(field), str):
            path.at(field).fault("is an absolute time: set `now`, or give seconds relative to it")


class _KnownNames:
    """The names that exist, updated with each step."""

    def __init__(self, scenario: Scenario, raw: Mapping[str, Any]) -> None:
        self.names = {field: set(_names(raw.get(field))) - {""} for field in _SINGULAR}
        self.parents = {
            queue.name: queue.parent_queue for queue in (*scenario.departments, *scenario.projects) if queue
        }
        self.inner = set(self.parents.values())
        self.topologies = scenario.topology
        self.workloads: dict[str, list[str]] = {}
        self.tasks: set[str] = set()
        # Workloads that have a fault of their own: their names are known all the same.
        self.faulty = set(_names(raw.get("workloads"))) - {workload.name for workload in scenario.workloads if workload}
        for step in raw.get("steps") or [] if isinstance(raw.get("steps"), list) else []:
            self.faulty |= set(_names(step.get("submit"))) if isinstance(step, dict) else set()

    def apply_step(self, action: str, operands: Any, path: FieldPath) -> None:
        if action == "submit":
            for index, workload in enumerate(operands):
                if workload:
                    self.submit(workload, path.at(index), at_start=False)
        elif action in ("delete", "finish"):
            for index, name in enumerate(operands):
                self._end(name, path.at(index), deleted=action == "delete")
        elif action in self.names:
            for index, change in enumerate(operands):
                if change and change["name"] not in self.names[action]:
                    path.at(index, "name").fault(f"no {_SINGULAR[action]} is called {change['name']!r}")
                if change:
                    self._change_parent(change, path.at(index))

    def _change_parent(self, change: Mapping[str, Any], path: FieldPath) -> None:
        for field in ("department", "parent"):
            parent = change.get(field)
            if parent is None:
                continue
            self.parents[change["name"]] = parent
            self.inner = set(self.parents.values())
            if parent not in self.parents:
                path.at(field).fault(f"no project or department is called {parent!r}")
            elif _has_cycle(change["name"], self.parents):
                path.at(field).fault(f"forms a cycle: {change['name']!r} would be below itself")

    def _end(self, name: str, path: FieldPath, *, deleted: bool) -> None:
        if name not in self.workloads:
            if name not in self.faulty:
                path.fault(f"no workload is called {name!r} now")
        elif deleted:
            self.tasks -= set(self.workloads.pop(name))

    def submit(self, workload: WorkloadSpec, path: FieldPath, *, at_start: bool) -> None:
        if workload.name in self.workloads:
            path.at("name").fault(f"{workload.name!r} appears twice")
        if workload.project not in self.names["projects"]:
            path.at("project").fault(f"no project is called {workload.project!r}")
        elif workload.project in self.inner:
            path.at("project").fault(f"{workload.project!r} has queues below it; only leaves have workloads")
        if workload.replicas is not None and workload.tasks is not None:
            path.at("replicas").fault("must not be given together with tasks")
        self._check_topology(workload.topology, path)
        subgroup_parents = self._subgroup_parents(workload, path)
        for index, task in enumerate(workload.tasks or ()):
            if task:
                self._check_task(task, subgroup_parents, path.at("tasks", index), at_start)
        names = task_names(workload)
        self._add_tasks(names, path)
        self.workloads[workload.name] = names

    def _add_tasks(self, names: Sequence[str], path: FieldPath) -> None:
        for index, name in enumerate(names):
            if name in self.tasks:
                path.at("tasks", index, "name").fault(f"{name!r} appears twice")
            self.tasks.add(name)

    def _subgroup_parents(self, workload: WorkloadSpec, path: FieldPath) -> dict[str, str]:
        """The parents of the workload's subgroups, by name."""
        parents: dict[str, str] = {}
        for index, group in enumerate(workload.subgroups):
            if group and group.name in parents:
                path.at("subgroups", index, "name").fault(f"{group.name!r} appears twice")
            elif group:
                parents[group.name] = group.parent
                self._check_topology(group.topology, path.at("subgroups", index))
        for index, group in enumerate(workload.subgroups):
            if not group:
                continue
            seen, parent = {group.name}, group.parent
            while parent:
                if parent not in parents or parent in seen:
                    fault = "forms a cycle" if parent in seen else f"no subgroup is called {parent!r}"
                    path.at("subgroups", index, "parent").fault(fault)
                    break
                seen.add(parent)
                parent = parents[parent]
        return parents

    def _check_topology(self, constraint: TopologySpec | None, path: FieldPath) -> None:
        if constraint is None:
            return
        levels = self.topologies.get(constraint.name)
        if levels is None:
            where = "topology of the scenario" if constraint.name == DEFAULT_POOL else "map of topologies"
            path.at("topology", "name").fault(f"no topology is called {constraint.name!r} in the {where}")
            return
        for field, level in (("required", constraint.required), ("preferred", constraint.preferred)):
            if level is not None and level not in levels:
                path.at("topology", field).fault(f"must be one of {', '.join(levels)}, not {level!r}")

    def _check_task(self, task: TaskSpec, subgroup_parents: Mapping[str, str], path: FieldPath, at_start: bool) -> None:
        placed = task.state in PLACED_STATES
        if not at_start and task.state not in ("pending", "gated"):
            path.at("state").fault("must be pending or gated: it is only being submitted")
        elif placed and not task.node:
            path.at("node").fault(f"is required: the task is {task.state}")
        elif placed and task.node not in self.names["nodes"]:
            path.at("node").fault(f"no node is called {task.node!r}")
        if not placed:
            placement = {
                "node": task.node,
                "devices": task.devices,
                "shareGroup": task.share_group,
                "shares": task.shares,
            }
            for field, value in placement.items():
                if value and task.state in ("pending", "gated"):
                    path.at(field).fault(f"only goes with state {', '.join(PLACED_STATES[:-1])} or {PLACED_STATES[-1]}")
        if task.subgroup and task.subgroup not in subgroup_parents:
            path.at("subgroup").fault(f"no subgroup is called {task.subgroup!r}")
        elif task.subgroup in subgroup_parents.values() and task.subgroup:
            path.at("subgroup").fault(f"{task.subgroup!r} has subgroups of its own; tasks belong to its leaves")


def task_names(workload: WorkloadSpec) -> list[str]:
    """The names of a workload's tasks. A task without a name is named as its pod would be."""
    given = (
        [""] * (workload.replicas or 1)
        if workload.tasks is None
        else [task.name if task else "" for task in workload.tasks]
    )
    return [name or f"{workload.name}-{index}-0" for index, name in enumerate(given)]
