"""Where the training stands, and its next step.

A course is a value that a checkpoint can hold at any step: stopped in the middle of an epoch and taken up again, it
goes on exactly as it would have gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aliquot.quickstart.network import Network, Points

STEPS, BATCH, TESTS = 60, 64, 1024  # of one epoch; small enough for a hundredth of a core


@dataclass(slots=True)
class Course:
    """How far it is. Sums are over the steps of the epoch under way."""

    network: Network
    seed: int = 0
    # Epochs that are over.
    epoch: int = 0
    # Steps of the epoch under way that are over; less than STEPS between two calls.
    step: int = 0
    losses: float = 0.0
    right: int = 0

    @property
    def loss(self) -> float:
        return self.losses / max(self.step, 1)

    @property
    def accuracy(self) -> float:
        return self.right / max(self.step * BATCH, 1)

    def advance(self, train: Points) -> None:
        """One step. The order of the points differs from epoch to epoch and follows from the seed."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(train.classes))
        batch = order[self.step * BATCH : (self.step + 1) * BATCH]
        loss, right = self.network.learn(Points(train.inputs[batch], train.classes[batch]))
        self.losses += loss
        self.right += right
        self.step += 1

    def turn(self) -> None:
        """The epoch is over; the next begins."""
        self.epoch += 1
        self.step, self.losses, self.right = 0, 0.0, 0
