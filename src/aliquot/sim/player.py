"""Playing a scenario: plan and apply, round by round, or step by step until nothing changes.

Without steps there are exactly as many rounds as asked for. With steps the start settles first, then each step happens
and settles; what was stopped or moved while the start settled is told with the first step.

Timing is that of the planner alone. With it the planner runs twice: first traced, for its peak of memory, because
tracing makes every allocation slower; then untraced, for the time, and warm, as it is in a server that plans all day.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

from aliquot.errors import Invalid
from aliquot.planner import plan
from aliquot.planner.plan import Plan
from aliquot.sim import result
from aliquot.sim.field_readers import Place
from aliquot.sim.scenario import scenarios
from aliquot.sim.world import World, evicted

SETTLE_ROUNDS = 20  # the most that a step may take, unless the file says


def worlds(data: Any) -> list[World]:
    """The scenarios of a file, ready to be played; `Invalid` with every fault."""
    found = scenarios(data)
    top = Place()
    many = isinstance(data, list)
    ready = [World(scenario, top.at(index) if many else top) for index, scenario in enumerate(found)]
    if top.faults:
        raise Invalid.because("not a valid scenario", top.faults)
    return ready


@dataclass
class Player:
    """One scenario in play. What was last decided stays, for those who ask why."""

    world: World
    rounds: int | None = None
    timing: bool = False
    load_ms: float = 0.0
    decided: Plan = field(default_factory=Plan)
    # Everything that was stopped or moved, with the text that says why.
    history: list[Any] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """All workloads of the scenario, also those that are gone by its end."""
        scenario = self.world.scenario
        submitted = [each for step in scenario.steps if step.word == "submit" for each in step.operands]
        return {spec.name for spec in (*scenario.workloads, *submitted)}

    def play(self) -> dict[str, Any]:
        scenario = self.world.scenario
        told: dict[str, Any] = {"name": scenario.name, "stable": False}
        if scenario.steps:
            told["steps"], told["stable"] = self._steps()
        else:
            told["rounds"], told["stable"] = self._rounds(self.rounds or scenario.rounds or 1)
        told["final"] = result.after(self.world, self.decided)
        return told

    def _rounds(self, count: int) -> tuple[list[Any], bool]:
        shown, changed = [], False
        for _ in range(count):
            clock = self._decide()
            picture = result.before(self.world, self.decided)
            shown.append({**picture, **({"timing": clock.shown()} if self.timing else {})})
            changed = self._apply()
        return shown, not changed

    def _steps(self) -> tuple[list[Any], bool]:
        shown = []
        _, stopped, _, _ = self._settle()
        place, stable = Place(), True
        for index, step in enumerate(self.world.scenario.steps):
            self.world.happen(step, place.at("steps", index, step.word))
            rounds, more, stable, clock = self._settle()
            picture = result.after(self.world, self.decided)
            shown.append({**picture, "rounds": rounds, "evictions": [*stopped, *more]})
            shown[-1] |= {"timing": clock.shown()} if self.timing else {}
            stopped = []
        return shown, stable

    def _settle(self) -> tuple[int, list[Any], bool, _Clock]:
        """Rounds it took, what was stopped, whether it came to rest, and the time."""
        stopped: list[Any] = []
        total = _Clock()
        most = self.rounds or self.world.scenario.rounds or SETTLE_ROUNDS
        for count in range(1, most + 1):
            total.add(self._decide())
            stopped += evicted(self.decided)
            if not self._apply():
                return count, stopped, True, total
        return most, stopped, False, total

    def _decide(self) -> _Clock:
        clock = _Clock(load_ms=self.load_ms)
        start = time.perf_counter()
        snapshot = self.world.snapshot()
        clock.load_ms += (time.perf_counter() - start) * 1000
        if self.timing:
            tracemalloc.start()
            plan(snapshot, self.world.policy, self.world.now, self.world.policies)
            clock.peak_mib = tracemalloc.get_traced_memory()[1] / (1 << 20)
            tracemalloc.stop()
        start = time.perf_counter()
        self.decided = plan(snapshot, self.world.policy, self.world.now, self.world.policies)
        clock.plan_ms = (time.perf_counter() - start) * 1000
        self.history += self.decided.evictions
        return clock

    def _apply(self) -> bool:
        start = time.perf_counter()
        changed = self.world.apply(self.decided)
        # What is loaded for the next round is what this one left.
        self.load_ms = (time.perf_counter() - start) * 1000
        return changed


@dataclass
class _Clock:
    load_ms: float = 0.0
    plan_ms: float = 0.0
    peak_mib: float = 0.0

    def add(self, other: _Clock) -> None:
        self.load_ms += other.load_ms
        self.plan_ms += other.plan_ms
        self.peak_mib = max(self.peak_mib, other.peak_mib)

    def shown(self) -> dict[str, float]:
        return {
            "loadMs": round(self.load_ms, 3),
            "planMs": round(self.plan_ms, 3),
            "peakMiB": round(self.peak_mib, 3),
        }
