"""The state of a training run, and its next step.

A checkpoint can hold the state at any step. A run that stops in the middle of an epoch and resumes goes on exactly as
it would have without the stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aliquot.quickstart.network import Network, Points

STEPS, BATCH, TESTS = 60, 64, 1024  # steps of an epoch, points of a step, test points; small enough for 1% of a core


@dataclass(slots=True)
class TrainingState:
    """`losses` and `correct` are sums over the steps of the current epoch."""

    network: Network
    seed: int = 0
    # Epochs that are complete.
    epoch: int = 0
    # Complete steps of the current epoch; less than STEPS between two epochs.
    step: int = 0
    losses: float = 0.0
    correct: int = 0

    @property
    def loss(self) -> float:
        return self.losses / max(self.step, 1)

    @property
    def accuracy(self) -> float:
        return self.correct / max(self.step * BATCH, 1)

    def advance(self, train: Points) -> None:
        """Takes one step. The seed and the epoch decide the order of the points."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(train.classes))
        batch = order[self.step * BATCH : (self.step + 1) * BATCH]
        loss, correct = self.network.learn(Points(train.inputs[batch], train.classes[batch]))
        self.losses += loss
        self.correct += correct
        self.step += 1

    def end_epoch(self) -> None:
        self.epoch += 1
        self.step, self.losses, self.correct = 0, 0.0, 0
