"""Running a scenario: plan and apply, round by round, or step by step until a plan changes nothing.

Without steps there are exactly as many rounds as asked for. With steps the start settles first, then each step is
applied and settles. Evictions from before the first step are listed with the first step.

Timing covers the planner alone. With it the planner runs twice: first with tracemalloc, for its peak memory, because
tracing slows every allocation; then without it, for the time. The second run is warm, as in a server that plans all
day.
"""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

from aliquot.errors import Invalid
from aliquot.planner import plan
from aliquot.planner.plan import Eviction, Plan
from aliquot.sim import result
from aliquot.sim.cluster import SimulatedCluster, eviction_entries
from aliquot.sim.field_readers import FieldPath
from aliquot.sim.scenario_file import read_scenarios

SETTLE_ROUNDS = 20  # the most rounds for one step, unless the file or the caller sets another number


def load_clusters(data: Any) -> list[SimulatedCluster]:
    """The scenarios of a file, ready to run; `Invalid` with every fault."""
    scenarios = read_scenarios(data)
    root = FieldPath()
    many = isinstance(data, list)
    clusters = [
        SimulatedCluster(scenario, root.at(index) if many else root) for index, scenario in enumerate(scenarios)
    ]
    if root.faults:
        raise Invalid.because("not a valid scenario", root.faults)
    return clusters


@dataclass
class Simulation:
    """One run of a scenario. The last plan and all evictions stay available after `run`, for explanations."""

    cluster: SimulatedCluster
    rounds: int | None = None
    timing: bool = False
    load_ms: float = 0.0
    last_plan: Plan = field(default_factory=Plan)
    # Every eviction and move so far.
    evictions: list[Eviction] = field(default_factory=list)

    @property
    def workload_names(self) -> set[str]:
        """All workloads of the scenario, also those that have ended."""
        scenario = self.cluster.scenario
        return {spec.name for spec in (*scenario.workloads, *scenario.submitted)}

    def run(self) -> dict[str, Any]:
        """The result, as `aliquot simulate` prints it."""
        scenario = self.cluster.scenario
        report: dict[str, Any] = {"name": scenario.name, "stable": False}
        if scenario.steps:
            report["steps"], report["stable"] = self._run_steps()
        else:
            report["rounds"], report["stable"] = self._run_rounds(self.rounds or scenario.rounds or 1)
        report["final"] = result.cluster_state(self.cluster, self.last_plan)
        return report

    def _run_rounds(self, count: int) -> tuple[list[Any], bool]:
        reports, changed = [], False
        for _ in range(count):
            timing = self._plan()
            report = result.round_result(self.cluster, self.last_plan)
            reports.append({**report, **({"timing": timing.as_dict()} if self.timing else {})})
            changed = self._apply()
        return reports, not changed

    def _run_steps(self) -> tuple[list[Any], bool]:
        reports = []
        _, before_first_step, _, _ = self._settle()
        root, stable = FieldPath(), True
        for index, step in enumerate(self.cluster.scenario.steps):
            self.cluster.apply_step(step, root.at("steps", index, step.action))
            rounds, evictions, stable, timing = self._settle()
            report = result.cluster_state(self.cluster, self.last_plan)
            reports.append({**report, "rounds": rounds, "evictions": [*before_first_step, *evictions]})
            reports[-1] |= {"timing": timing.as_dict()} if self.timing else {}
            before_first_step = []
        return reports, stable

    def _settle(self) -> tuple[int, list[Any], bool, _Timing]:
        """Number of rounds, evictions, whether the last round changed nothing, and the time."""
        evictions: list[Any] = []
        total = _Timing()
        most = self.rounds or self.cluster.scenario.rounds or SETTLE_ROUNDS
        for count in range(1, most + 1):
            total.add(self._plan())
            evictions += eviction_entries(self.last_plan)
            if not self._apply():
                return count, evictions, True, total
        return most, evictions, False, total

    def _plan(self) -> _Timing:
        cluster, timing = self.cluster, _Timing(load_ms=self.load_ms)
        start = time.perf_counter()
        snapshot = cluster.snapshot()
        timing.load_ms += (time.perf_counter() - start) * 1000
        if self.timing:
            tracemalloc.start()
            plan(snapshot, cluster.policy, cluster.now, cluster.policies)
            timing.peak_mib = tracemalloc.get_traced_memory()[1] / (1 << 20)
            tracemalloc.stop()
        start = time.perf_counter()
        self.last_plan = plan(snapshot, cluster.policy, cluster.now, cluster.policies)
        timing.plan_ms = (time.perf_counter() - start) * 1000
        self.evictions += self.last_plan.evictions
        return timing

    def _apply(self) -> bool:
        start = time.perf_counter()
        changed = self.cluster.apply(self.last_plan)
        # Applying this round's plan is the loading of the next round.
        self.load_ms = (time.perf_counter() - start) * 1000
        return changed


@dataclass
class _Timing:
    load_ms: float = 0.0
    plan_ms: float = 0.0
    peak_mib: float = 0.0

    def add(self, other: _Timing) -> None:
        self.load_ms += other.load_ms
        self.plan_ms += other.plan_ms
        self.peak_mib = max(self.peak_mib, other.peak_mib)

    def as_dict(self) -> dict[str, float]:
        return {
            "loadMs": round(self.load_ms, 3),
            "planMs": round(self.plan_ms, 3),
            "peakMiB": round(self.peak_mib, 3),
        }
