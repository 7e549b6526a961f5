"""Whether the names in a scenario belong together: what is named exists, and nothing exists twice.

Works on what could be read, so that faults of both kinds are told at once. A thing with a fault of its own is None
here, but its name counts as known: one mistake is told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aliquot.planner.model import DEFAULT_POOL
from aliquot.sim.field_readers import Place
from aliquot.sim.records import HOLDING, ClosenessSpec, QueueSpec, Scenario, TaskSpec, WorkloadSpec

_PLURAL = {"nodes": "node", "projects": "project", "departments": "department"}


def check(scenario: Scenario, raw: Mapping[str, Any], place: Place) -> None:
    known = _Known(scenario, raw)
    _unique(raw, "nodes", place, set())
    queues: set[str] = set()
    _unique(raw, "departments", place, queues)
    _unique(raw, "projects", place, queues)
    if None not in (*scenario.departments, *scenario.projects):  # of a tree with holes nothing can be said
        _tree(scenario, place)
    for index, node in enumerate(scenario.nodes):
        if node and node.mig and node.mig_strategy == "none":
            place.at("nodes", index, "mig").fault("needs migStrategy single or mixed")
    for index, workload in enumerate(scenario.workloads):
        if workload:
            known.submit(workload, place.at("workloads", index), at_start=True)
    for index, step in enumerate(scenario.steps):
        if step:
            known.happen(step.word, step.operands, place.at("steps", index, step.word))
    if scenario.now is None:
        _relative_only(raw, place)


def _unique(raw: Mapping[str, Any], word: str, place: Place, seen: set[str]) -> None:
    for index, name in enumerate(_names(raw.get(word))):
        if name in seen:
            place.at(word, index, "name").fault(f"{name!r} stands twice")
        elif name:
            seen.add(name)


def _names(items: Any) -> list[str]:
    found = [each.get("name") if isinstance(each, dict) else "" for each in items] if isinstance(items, list) else []
    return [each if isinstance(each, str) else "" for each in found]


def _tree(scenario: Scenario, place: Place) -> None:
    parents = {queue.name: queue.above for queue in (*scenario.departments, *scenario.projects)}
    departments = {queue.name for queue in scenario.departments}
    for word, queues in (("departments", scenario.departments), ("projects", scenario.projects)):
        for index, queue in enumerate(queues):
            _parent(queue, parents, departments, place.at(word, index))


def _parent(queue: QueueSpec, parents: Mapping[str, str], departments: set[str], place: Place) -> None:
    if queue.department and queue.parent:
        place.at("parent").fault("must not stand beside department")
    if queue.department and queue.department not in departments:
        place.at("department").fault(f"no department is called {queue.department!r}")
    elif queue.parent and queue.parent not in parents:
        place.at("parent").fault(f"no project or department is called {queue.parent!r}")
    if _circle(queue.name, parents):
        place.at("parent").fault(f"goes in a circle: {queue.name!r} would be below itself")


def _circle(name: str, parents: Mapping[str, str]) -> bool:
    above, steps = parents.get(name, ""), 0
    while above and above != name and steps <= len(parents):
        above, steps = parents.get(above, ""), steps + 1
    return bool(above)


def _relative_only(raw: Mapping[str, Any], place: Place) -> None:
    """Without `now` an absolute time says nothing."""
    items: list[tuple[Any, Place]] = [(raw.get(word), place.at(word)) for word in ("projects", "departments")]
    items.append((raw.get("workloads"), place.at("workloads")))
    steps = raw.get("steps") if isinstance(raw.get("steps"), list) else []
    items += [
        (step.get("submit"), place.at("steps", index, "submit"))
        for index, step in enumerate(steps or [])
        if isinstance(step, dict)
    ]
    for found, where in items:
        for index, each in enumerate(found if isinstance(found, list) else []):
            if not isinstance(each, dict):
                continue
            _absolute(each, ("created", "started", "saved", "staleSince"), where.at(index))
            tasks = each.get("tasks")
            for number, task in enumerate(tasks if isinstance(tasks, list) else []):
                if isinstance(task, dict):
                    _absolute(task, ("terminatingSince",), where.at(index, "tasks", number))


def _absolute(data: Mapping[str, Any], fields: Iterable[str], place: Place) -> None:
    for field in fields:
        if isinstance(data.get(field), str):
            place.at(field).fault("is an absolute time: say what `now` is, or give seconds relative to it")


class _Known:
    """Who is there, as the steps of a scenario go by."""

    def __init__(self, scenario: Scenario, raw: Mapping[str, Any]) -> None:
        self.names = {word: set(_names(raw.get(word))) - {""} for word in _PLURAL}
        self.parents = {queue.name: queue.above for queue in (*scenario.departments, *scenario.projects) if queue}
        self.inner = set(self.parents.values())
        self.topologies = scenario.topology
        self.workloads: dict[str, list[str]] = {}
        self.tasks: set[str] = set()
        # A workload with a fault of its own is there all the same.
        self.broken = set(_names(raw.get("workloads"))) - {each.name for each in scenario.workloads if each}
        for step in raw.get("steps") or [] if isinstance(raw.get("steps"), list) else []:
            self.broken |= set(_names(step.get("submit"))) if isinstance(step, dict) else set()

    def happen(self, word: str, operands: Any, place: Place) -> None:
        if word == "submit":
            for index, workload in enumerate(operands):
                if workload:
                    self.submit(workload, place.at(index), at_start=False)
        elif word in ("delete", "finish"):
            for index, name in enumerate(operands):
                self._leave(name, place.at(index), gone=word == "delete")
        elif word in self.names:
            for index, change in enumerate(operands):
                if change and change["name"] not in self.names[word]:
                    place.at(index, "name").fault(f"no {_PLURAL[word]} is called {change['name']!r}")
                if change:
                    self._rehang(change, place.at(index))

    def _rehang(self, change: Mapping[str, Any], place: Place) -> None:
        for word in ("department", "parent"):
            above = change.get(word)
            if above is None:
                continue
            self.parents[change["name"]] = above
            self.inner = set(self.parents.values())
            if above not in self.parents:
                place.at(word).fault(f"no project or department is called {above!r}")
            elif _circle(change["name"], self.parents):
                place.at(word).fault(f"goes in a circle: {change['name']!r} would be below itself")

    def _leave(self, name: str, place: Place, *, gone: bool) -> None:
        if name not in self.workloads:
            if name not in self.broken:
                place.fault(f"no workload is called {name!r} now")
        elif gone:
            self.tasks -= set(self.workloads.pop(name))

    def submit(self, workload: WorkloadSpec, place: Place, *, at_start: bool) -> None:
        if workload.name in self.workloads:
            place.at("name").fault(f"{workload.name!r} stands twice")
        if workload.project not in self.names["projects"]:
            place.at("project").fault(f"no project is called {workload.project!r}")
        elif workload.project in self.inner:
            place.at("project").fault(f"{workload.project!r} has queues below it; only leaves have workloads")
        if workload.replicas is not None and workload.tasks is not None:
            place.at("replicas").fault("must not stand beside tasks")
        self._closeness(workload.topology, place)
        groups = self._groups(workload, place)
        for index, task in enumerate(workload.tasks or ()):
            if task:
                self._task(task, groups, place.at("tasks", index), at_start)
        names = task_names(workload)
        self._task_names(names, place)
        self.workloads[workload.name] = names

    def _task_names(self, names: Sequence[str], place: Place) -> None:
        for index, name in enumerate(names):
            if name in self.tasks:
                place.at("tasks", index, "name").fault(f"{name!r} stands twice")
            self.tasks.add(name)

    def _groups(self, workload: WorkloadSpec, place: Place) -> dict[str, str]:
        """Parents of its subgroups."""
        parents: dict[str, str] = {}
        for index, group in enumerate(workload.subgroups):
            if group and group.name in parents:
                place.at("subgroups", index, "name").fault(f"{group.name!r} stands twice")
            elif group:
                parents[group.name] = group.parent
                self._closeness(group.topology, place.at("subgroups", index))
        for index, group in enumerate(workload.subgroups):
            if not group:
                continue
            seen, above = {group.name}, group.parent
            while above:
                if above not in parents or above in seen:
                    what = "goes in a circle" if above in seen else f"no subgroup is called {above!r}"
                    place.at("subgroups", index, "parent").fault(what)
                    break
                seen.add(above)
                above = parents[above]
        return parents

    def _closeness(self, wanted: ClosenessSpec | None, place: Place) -> None:
        if wanted is None:
            return
        levels = self.topologies.get(wanted.name)
        if levels is None:
            where = "topology of the scenario" if wanted.name == DEFAULT_POOL else "map of topologies"
            place.at("topology", "name").fault(f"no topology is called {wanted.name!r} in the {where}")
            return
        for word, level in (("required", wanted.required), ("preferred", wanted.preferred)):
            if level is not None and level not in levels:
                place.at("topology", word).fault(f"must be one of {', '.join(levels)}, not {level!r}")

    def _task(self, task: TaskSpec, groups: Mapping[str, str], place: Place, at_start: bool) -> None:
        holds = task.state in HOLDING
        if not at_start and task.state not in ("pending", "gated"):
            place.at("state").fault("must be pending or gated: it is only being submitted")
        elif holds and not task.node:
            place.at("node").fault(f"is required: the task is {task.state}")
        elif holds and task.node not in self.names["nodes"]:
            place.at("node").fault(f"no node is called {task.node!r}")
        if not holds:
            told = {"node": task.node, "devices": task.devices, "shareGroup": task.share_group, "shares": task.shares}
            for word, given in told.items():
                if given and task.state in ("pending", "gated"):
                    place.at(word).fault(f"only goes with state {', '.join(HOLDING[:-1])} or {HOLDING[-1]}")
        if task.subgroup and task.subgroup not in groups:
            place.at("subgroup").fault(f"no subgroup is called {task.subgroup!r}")
        elif task.subgroup in groups.values() and task.subgroup:
            place.at("subgroup").fault(f"{task.subgroup!r} has subgroups of its own; tasks belong to its leaves")


def task_names(workload: WorkloadSpec) -> list[str]:
    """What its tasks are called; those without a name of their own as the pods of the platform."""
    given = (
        [""] * (workload.replicas or 1)
        if workload.tasks is None
        else [task.name if task else "" for task in workload.tasks]
    )
    return [name or f"{workload.name}-{index}-0" for index, name in enumerate(given)]
