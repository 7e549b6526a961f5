"""The data set and the network: clustered points of ten classes, and a network with one hidden layer.

The seed decides everything: the same seed gives the same points, the same initial weights and the same training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CLASSES, FEATURES, HIDDEN = 10, 24, 64
CLUSTERS = 4  # of each class: not linearly separable, so the hidden layer is needed
NOISE = 0.9  # clusters overlap: learning takes a while and never reaches 100%
RATE, MOMENTUM = 0.002, 0.9  # slow enough to watch it learn for minutes, not seconds


@dataclass(frozen=True, slots=True)
class Points:
    inputs: Floats
    classes: Ints


def points(seed: int, train: int, test: int) -> tuple[Points, Points]:
    """The training set and the test set."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES * CLUSTERS, FEATURES))
    chosen = rng.integers(len(centres), size=train + test)
    inputs = (centres[chosen] + rng.normal(scale=NOISE, size=(train + test, FEATURES))).astype(np.float32)
    classes = (chosen % CLASSES).astype(np.int64)
    return Points(inputs[:train], classes[:train]), Points(inputs[train:], classes[train:])


class Network:
    """Weights and their momentum. `arrays` is the whole state, as saved in a checkpoint."""

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
        """Takes one step of gradient descent; returns the mean loss before it, and how many points were correct."""
        hidden, probabilities = self._forward(batch.inputs)
        rows = np.arange(len(batch.classes))
        loss = float(-np.log(probabilities[rows, batch.classes] + 1e-9).mean())
        correct = int((probabilities.argmax(axis=1) == batch.classes).sum())
        error = probabilities
        error[rows, batch.classes] -= 1
        error /= len(rows)
        hidden_error = (error @ self.arrays["w2"].T) * (hidden > 0)
        self._descend("w2", hidden.T @ error)
        self._descend("b2", error.sum(axis=0))
        self._descend("w1", batch.inputs.T @ hidden_error)
        self._descend("b1", hidden_error.sum(axis=0))
        return loss, correct

    def accuracy(self, test: Points) -> float:
        _, probabilities = self._forward(test.inputs)
        return float((probabilities.argmax(axis=1) == test.classes).mean())

    def _forward(self, inputs: Floats) -> tuple[Floats, Floats]:
        hidden = np.maximum(inputs @ self.arrays["w1"] + self.arrays["b1"], 0)
        scores = hidden @ self.arrays["w2"] + self.arrays["b2"]
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, exponentials / exponentials.sum(axis=1, keepdims=True)

    def _descend(self, name: str, gradient: Floats) -> None:
        momentum = self.arrays[f"m_{name}"]
        momentum *= MOMENTUM
        momentum += gradient
        self.arrays[name] -= np.float32(RATE) * momentum
