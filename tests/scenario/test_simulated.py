"""The acceptance scenarios, run by `aliquot simulate`, with every intermediate step checked.

A file holds a `scenario` as users write it and what to `expect` after its steps:

    continues         another file, whose steps come first
    expect            a list; each entry names its `step` (of the file, from 1) and what must hold once it has settled
    neverInterrupted  workloads (with * for any) that are neither stopped nor moved in any step

What must hold after a step: allocated (GPUs by project), cluster (GPUs in use), nodes (GPUs in use by node), running
and pending (all names, or how many), runs and waits (these among others), states (by workload), tasks (how many run, by
workload), placed (node by workload), stopped and moved (all names), evictions (how many tasks), sameDevice, fairShare,
and fairShareFloor. Where the rules leave a choice, `oneOf` lists alternatives, exactly one of which must hold.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli.main import aliquot

FILES = Path(__file__).parent / "files"


def _read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((FILES / f"{name}.yaml").read_text())
    if "continues" not in data:
        return {"before": 0, **data}
    base, own = _read(data["continues"]), data.get("scenario", {})
    steps = base["scenario"].get("steps", [])
    scenario = {**base["scenario"], **own, "steps": [*steps, *own.get("steps", [])]}
    return {**data, "scenario": scenario, "before": len(steps)}


@cache
def _played(name: str) -> dict[str, Any]:
    text = json.dumps(_read(name)["scenario"])
    outcome = CliRunner().invoke(aliquot, ["simulate", "-"], input=text)
    assert outcome.exit_code == 0, outcome.output
    result: dict[str, Any] = json.loads(outcome.stdout)
    return result


class SettledStep:
    """One settled step of the result, with a method for each expectation."""

    def __init__(self, scenario: dict[str, Any], step: dict[str, Any]) -> None:
        submitted = [each for step in scenario.get("steps", []) for each in step.get("submit", [])]
        self.project = {each["name"]: each["project"] for each in [*scenario.get("workloads", []), *submitted]}
        self.step = step
        self.workloads, self.tasks = step["workloads"], step["tasks"]

    def of(self, workload: str) -> dict[str, Any]:
        """The tasks of a workload."""
        own = {name: task for name, task in self.tasks.items() if name.rsplit("-", 2)[0] == workload}
        assert own, f"{workload} has no task"
        return own

    def in_state(self, state: str) -> list[str]:
        return sorted(name for name, each in self.workloads.items() if each["state"] == state)

    def allocated(self, wanted: dict[str, Any]) -> dict[str, float]:
        held: Counter[str] = Counter(dict.fromkeys(wanted, 0))
        for name, each in self.workloads.items():
            held[self.project[name]] += round(each["allocated"]["gpu"] * 1000)
        return {name: held[name] / 1000 for name in wanted}

    def cluster(self, wanted: float) -> float:
        milli: int = sum(round(each["allocated"]["gpu"] * 1000) for each in self.workloads.values())
        return milli / 1000

    def nodes(self, wanted: dict[str, Any]) -> dict[str, float]:
        held: Counter[str] = Counter(dict.fromkeys(wanted, 0))
        for task in self.tasks.values():
            held[task["node"]] += sum(share["milli"] for share in task["devices"])
        return {name: held[name] / 1000 for name in wanted}

    def running(self, wanted: Any) -> Any:
        return self._all("running", wanted)

    def pending(self, wanted: Any) -> Any:
        return self._all("pending", wanted)

    def _all(self, state: str, wanted: Any) -> Any:
        names = self.in_state(state)
        return (
            len(names)
            if isinstance(wanted, int)
            else [name for name in wanted if name in names] + [name for name in names if name not in wanted]
        )

    def runs(self, wanted: list[str]) -> list[str]:
        return [name for name in wanted if name in self.in_state("running")]

    def waits(self, wanted: list[str]) -> list[str]:
        return [name for name in wanted if name in self.in_state("pending")]

    def states(self, wanted: dict[str, str]) -> dict[str, str]:
        return {name: self.workloads[name]["state"] for name in wanted}

    def tasks_running(self, wanted: dict[str, int]) -> dict[str, int]:
        return {name: sum(task["state"] == "running" for task in self.of(name).values()) for name in wanted}

    def placed(self, wanted: dict[str, Any]) -> dict[str, str]:
        return {name: "+".join(sorted({str(task["node"]) for task in self.of(name).values()})) for name in wanted}

    def _evicted(self, moved: bool) -> list[str]:
        return sorted({eviction["workload"] for eviction in self.step["evictions"] if eviction["moved"] is moved})

    def stopped(self, wanted: list[str]) -> list[str]:
        return self._evicted(False)

    def moved(self, wanted: list[str]) -> list[str]:
        return self._evicted(True)

    def evictions(self, wanted: int) -> int:
        return len(self.step["evictions"])

    def same_device(self, wanted: list[list[str]]) -> list[list[str]]:
        def place(name: str) -> tuple[Any, ...]:
            (task,) = self.of(name).values()
            return (task["state"], task["node"], tuple(share["index"] for share in task["devices"]))

        return [subgroup for subgroup in wanted if len({place(name) for name in subgroup}) == 1]

    def fair_share(self, wanted: dict[str, float]) -> dict[str, float]:
        # Fair shares are exact to a thousandth; ties decide which queue gets the last one.
        shares = {name: self.step["fairShare"][name]["gpu"] for name in wanted}
        return {name: wanted[name] if abs(gpus - wanted[name]) < 0.0015 else gpus for name, gpus in shares.items()}

    def fair_share_floor(self, wanted: dict[str, int]) -> dict[str, int]:
        return {name: math.floor(self.step["fairShare"][name]["gpu"]) for name in wanted}


_EXPECTATIONS: dict[str, Callable[[SettledStep, Any], object]] = {
    "allocated": SettledStep.allocated,
    "cluster": SettledStep.cluster,
    "nodes": SettledStep.nodes,
    "running": SettledStep.running,
    "pending": SettledStep.pending,
    "runs": SettledStep.runs,
    "waits": SettledStep.waits,
    "tasks": SettledStep.tasks_running,
    "placed": SettledStep.placed,
    "stopped": SettledStep.stopped,
    "moved": SettledStep.moved,
    "evictions": SettledStep.evictions,
    "sameDevice": SettledStep.same_device,
    "fairShare": SettledStep.fair_share,
    "fairShareFloor": SettledStep.fair_share_floor,
    "states": SettledStep.states,
}


def _differences(step: SettledStep, wanted: dict[str, Any]) -> list[str]:
    results = {word: _EXPECTATIONS[word](step, value) for word, value in wanted.items()}
    return [f"{word}: wanted {wanted[word]}, is {results[word]}" for word in wanted if results[word] != wanted[word]]


def _names() -> list[str]:
    return sorted(path.stem for path in FILES.glob("*.yaml"))


@pytest.mark.parametrize("name", _names())
def test_scenario(name: str) -> None:
    """Every expectation of the file holds after its step."""
    scenario, result = _read(name), _played(name)
    assert scenario["expect"], "a scenario that expects nothing tests nothing"
    for expected in scenario["expect"]:
        wanted = dict(expected)
        number = wanted.pop("step")
        choices = wanted.pop("oneOf", None)
        step = SettledStep(scenario["scenario"], result["steps"][scenario["before"] + number - 1])
        assert _differences(step, wanted) == [], f"step {number}"
        if choices is not None:
            wrong = [_differences(step, each) for each in choices]
            assert sum(not each for each in wrong) == 1, f"step {number}: {wrong}"


@pytest.mark.parametrize("name", _names())
def test_scenario_never_interrupted(name: str) -> None:
    """Workloads listed under `neverInterrupted` are neither stopped nor moved in any step."""
    never = _read(name).get("neverInterrupted", [])
    hit = {eviction["workload"] for step in _played(name)["steps"] for eviction in step["evictions"]}
    assert [each for each in sorted(hit) if any(fnmatchcase(each, pattern) for pattern in never)] == []


@pytest.mark.parametrize("name", _names())
def test_scenario_invariants(name: str) -> None:
    """No GPU is allocated twice, every step settles, and every pending workload has a refusal."""
    result = _played(name)
    assert result["stable"]
    for step in result["steps"]:
        held: Counter[tuple[str, int]] = Counter()
        for task in step["tasks"].values():
            held.update({(task["node"], share["index"]): share["milli"] for share in task["devices"]})
            assert task["state"] != "pending" or task["refusal"]["code"] not in ("", "not-considered")
        assert max(held.values(), default=0) <= 1000


def test_all_scenarios_are_here() -> None:
    """Every acceptance scenario has a file."""
    wanted = ["a", "b", "c", "c1", "c2", "c3", "c4", "f7", "f8", "g1", "g2", "g4", "g6"]
    wanted += [f"d{number}" for number in (*range(1, 6), *range(8, 17))]
    wanted += [f"e{number}" for number in (*range(1, 7), *range(12, 16))]
    assert {name.partition("-")[0] for name in _names()} >= set(wanted)
