"""Sums over time during a replay: GPUs held by each project, its fair share, and jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aliquot.planner.model import GPU, Amount


class UsageMeter:
    """GPUs by project. `advance_to` moves time on; between two calls nothing changes."""

    def __init__(self, projects: Sequence[str], total: int) -> None:
        self.projects = list(projects)
        self._index = {name: index for index, name in enumerate(self.projects)}
        self.total = total  # milli-GPU
        self.now = 0.0
        self.held = np.zeros(len(self.projects))
        self._fair_share = np.zeros(len(self.projects))
        self.received = np.zeros(len(self.projects))  # GPU-seconds
        self.deserved = np.zeros(len(self.projects))
        self.in_use = 0  # milli-GPU
        self.active_jobs = 0  # submitted and not ended
        self.job_seconds = 0.0  # summed over active jobs
        self.seconds_at: dict[int, float] = {}  # seconds by milli-GPU in use
        self.changes: list[tuple[float, int, int]] = []  # time, milli-GPU in use and waiting jobs from then on

    def advance_to(self, now: float) -> None:
        passed = now - self.now
        if passed <= 0:
            return
        self.received += self.held * passed
        self.deserved += self._fair_share * passed
        self.job_seconds += self.active_jobs * passed
        self.seconds_at[self.in_use] = self.seconds_at.get(self.in_use, 0.0) + passed
        self.now = now

    def allocate(self, project: str, milli: int) -> None:
        """Add to the GPUs that a project holds; a negative amount is a release."""
        self.held[self._index[project]] += milli / GPU
        self.in_use += milli
        assert 0 <= self.in_use <= self.total, "more GPUs in use than there are"

    def set_fair_shares(self, shares: Mapping[str, Amount] | None) -> None:
        """Fair shares from now on. None: no job waits, so each project's fair share is what it holds."""
        if shares is None:
            self._fair_share = self.held.copy()
        else:
            for name, index in self._index.items():
                self._fair_share[index] = shares[name][0] / GPU

    def record(self, waiting: int) -> None:
        """Record the state from now on, for the chart."""
        if self.changes and self.changes[-1][0] == self.now:
            self.changes.pop()
        if not self.changes or self.changes[-1][1:] != (self.in_use, waiting):
            self.changes.append((self.now, self.in_use, waiting))

    def allocation(self, quantile: float) -> float:
        """The allocated share of all GPUs at a quantile of time: 0.5 is the median."""
        remaining = quantile * sum(self.seconds_at.values())
        for used, seconds in sorted(self.seconds_at.items()):
            remaining -= seconds
            if remaining <= 0:
                return used / self.total
        return 0.0

    def mean_allocation(self) -> float:
        seconds = sum(self.seconds_at.values())
        if not seconds:
            return 0.0
        return sum(used * duration for used, duration in self.seconds_at.items()) / seconds / self.total

    def ratios(self) -> list[float]:
        """Received over deserved GPU-seconds, for projects that deserved any. At most 1: borrowing beyond the fair
        share takes nothing that another project deserves."""
        pairs = zip(self.received, self.deserved, strict=True)
        return [min(1.0, float(received / deserved)) for received, deserved in pairs if deserved > 0]


def jain(values: Sequence[float]) -> float:
    """1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
