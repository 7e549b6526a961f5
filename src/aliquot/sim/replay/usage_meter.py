"""Sums over time while a trace is played: what was held, by whom, and what each project was due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aliquot.planner.model import GPU, Amount


class Meter:
    """GPUs by project. Time moves on by `pass_to`; between two moments nothing changes."""

    def __init__(self, projects: Sequence[str], total: int) -> None:
        self.projects = list(projects)
        self._index = {name: index for index, name in enumerate(self.projects)}
        self.total = total  # milli-GPU
        self.now = 0.0
        self.held = np.zeros(len(self.projects))
        self._due = np.zeros(len(self.projects))
        self.received = np.zeros(len(self.projects))  # GPU-seconds
        self.deserved = np.zeros(len(self.projects))
        self.in_use = 0  # milli-GPU
        self.alive = 0  # jobs that were submitted and have not ended
        self.life = 0.0  # job-seconds
        self.seconds_at: dict[int, float] = {}  # by milli-GPU in use
        self.moments: list[tuple[float, int, int]] = []  # from when on: milli-GPU in use, jobs that wait

    def pass_to(self, now: float) -> None:
        passed = now - self.now
        if passed <= 0:
            return
        self.received += self.held * passed
        self.deserved += self._due * passed
        self.life += self.alive * passed
        self.seconds_at[self.in_use] = self.seconds_at.get(self.in_use, 0.0) + passed
        self.now = now

    def take(self, project: str, milli: int) -> None:
        """A project got this much, or (negative) gave it back."""
        self.held[self._index[project]] += milli / GPU
        self.in_use += milli
        assert 0 <= self.in_use <= self.total, "more GPUs in use than there are"

    def due(self, shares: Mapping[str, Amount] | None) -> None:
        """What each project is due from now on; without a plan everybody has what it wants."""
        if shares is None:
            self._due = self.held.copy()
        else:
            for name, index in self._index.items():
                self._due[index] = shares[name][0] / GPU

    def note(self, waiting: int) -> None:
        """How things stand from now on, for the chart."""
        if self.moments and self.moments[-1][0] == self.now:
            self.moments.pop()
        if not self.moments or self.moments[-1][1:] != (self.in_use, waiting):
            self.moments.append((self.now, self.in_use, waiting))

    def allocation(self, part: float) -> float:
        """The share of all GPUs below which the cluster was for this part of the time."""
        left = part * sum(self.seconds_at.values())
        for used, seconds in sorted(self.seconds_at.items()):
            left -= seconds
            if left <= 0:
                return used / self.total
        return 0.0

    def mean_allocation(self) -> float:
        whole = sum(self.seconds_at.values())
        return sum(used * seconds for used, seconds in self.seconds_at.items()) / whole / self.total if whole else 0.0

    def ratios(self) -> list[float]:
        """What each project got of what it was due, of those that were ever due anything. More than that counts as all
        of it: to borrow what nobody else is due does no wrong to anybody."""
        pairs = zip(self.received, self.deserved, strict=True)
        return [min(1.0, float(got / due)) for got, due in pairs if due > 0]


def jain(values: Sequence[float]) -> float:
    """1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
