"""What is learnt and what learns it: points in clusters of ten classes, and a network with one hidden layer.

Everything follows from the seed: the same seed gives the same points, the same start and the same course.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES, FEATURES, HIDDEN = 10, 24, 64
CLUSTERS = 4  # of each class: one straight line cannot part them, so the hidden layer has work
NOISE = 0.9  # neighbours overlap: neither learnt at once nor ever without a mistake
RATE, MOMENTUM = 0.002, 0.9  # a rate at which one can watch it learn, for minutes and not for seconds


@dataclass(frozen=True, slots=True)
class Points:
    """Inputs and their classes."""

    inputs: Floats
    classes: Ints


def points(seed: int, train: int, test: int) -> tuple[Points, Points]:
    """What it learns from, and what it is tested with and never sees before."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES * CLUSTERS, FEATURES))
    chosen = rng.integers(len(centres), size=train + test)
    inputs = (centres[chosen] + rng.normal(scale=NOISE, size=(train + test, FEATURES))).astype(np.float32)
    classes = (chosen % CLASSES).astype(np.int64)
    return Points(inputs[:train], classes[:train]), Points(inputs[train:], classes[train:])


class Network:
    """Weights and their momentum. `arrays` is all there is: what a checkpoint holds."""

    def __init__(self, arrays: Mapping[str, Floats]) -> None:
        self.arrays = dict(arrays)

    @classmethod
    def fresh(cls, seed: int) -> Network:
        rng = np.random.default_rng(seed + 1)
        weights = {
            "w1": rng.normal(scale=(2 / FEATURES) ** 0.5, size=(FEATURES, HIDDEN)),
            "b1": np.zeros(HIDDEN),
            "w2": rng.normal(scale=(1 / HIDDEN) ** 0.5, size=(HIDDEN, CLASSES)),
            "b2": np.zeros(CLASSES),
        }
        momenta = {f"m_{name}": np.zeros_like(value) for name, value in weights.items()}
        return cls({name: value.astype(np.float32) for name, value in (weights | momenta).items()})

    def learn(self, batch: Points) -> tuple[float, int]:
        """One step of gradient descent: the mean loss before it, and how many were right."""
        hidden, chances = self._forward(batch.inputs)
        rows = np.arange(len(batch.classes))
        loss = float(-np.log(chances[rows, batch.classes] + 1e-9).mean())
        right = int((chances.argmax(axis=1) == batch.classes).sum())
        error = chances
        error[rows, batch.classes] -= 1
        error /= len(rows)
        below = (error @ self.arrays["w2"].T) * (hidden > 0)
        self._descend("w2", hidden.T @ error)
        self._descend("b2", error.sum(axis=0))
        self._descend("w1", batch.inputs.T @ below)
        self._descend("b1", below.sum(axis=0))
        return loss, right

    def accuracy(self, test: Points) -> float:
        _, chances = self._forward(test.inputs)
        return float((chances.argmax(axis=1) == test.classes).mean())

    def _forward(self, inputs: Floats) -> tuple[Floats, Floats]:
        hidden = np.maximum(inputs @ self.arrays["w1"] + self.arrays["b1"], 0)
        scores = hidden @ self.arrays["w2"] + self.arrays["b2"]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def _descend(self, name: str, slope: Floats) -> None:
        momentum = self.arrays[f"m_{name}"]
        momentum *= MOMENTUM
        momentum += slope
        self.arrays[name] -= np.float32(RATE) * momentum
