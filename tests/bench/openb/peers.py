"""FGD and BestFit, the algorithms of the trace's publishers, implemented for comparison.

Both score every node on which a pod fits, rounded to whole numbers, and ties go to the first name. Scores are cached by
pod class, and computed again for nodes that changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from aliquot import labels
from aliquot.planner import Node
from aliquot.planner.model import GPU
from aliquot.sim.traces.openb import Pod

Array = np.ndarray[Any, Any]
_TYPICAL = 0.95  # the part of all pods that the typical requests cover
_DEVICES, _CORES = 8, 128_000  # of the largest node


class Peer:
    def __init__(self, nodes: Sequence[Node], pods: Sequence[Pod]) -> None:
        ordered = sorted(nodes, key=lambda node: node.name)
        self.cpu = np.array([node.cpu for node in ordered])
        self.memory = np.array([node.memory for node in ordered])
        self.free = np.zeros((len(ordered), _DEVICES), int)
        for number, node in enumerate(ordered):
            self.free[number, : len(node.devices)] = GPU
        self.models = [node.labels[labels.NODE_TYPE] for node in ordered]
        self._scores: dict[object, tuple[Array, Array]] = {}
        self._masks: dict[object, Array] = {}
        self._read: dict[object, int] = {}  # how many of the changes are in the scores of a pod class
        self._changes: list[int] = []

    def allowed(self, models: tuple[str, ...]) -> Array:
        return np.array([not models or model in models for model in self.models])

    def place(self, pod: Pod) -> bool:
        """Place a pod for good, if it fits."""
        pod_class = (pod.request, pod.models)
        if pod_class not in self._scores:
            self._scores[pod_class] = (np.full(len(self.cpu), -np.inf), np.zeros(len(self.cpu), int))
            self._masks[pod_class] = self.allowed(pod.models)
            changed = np.arange(len(self.cpu))
        else:
            changed = np.unique(np.array(self._changes[self._read[pod_class] :], int))
        self._read[pod_class] = len(self._changes)
        scores, devices = self._scores[pod_class]
        if changed.size:
            self._update(pod, changed, self._masks[pod_class], scores, devices)
        best = int(np.argmax(self.final(scores)))
        if scores[best] == -np.inf:
            return False
        self._allocate(pod, best, int(devices[best]))
        return True

    def _update(self, pod: Pod, changed: Array, mask: Array, scores: Array, devices: Array) -> None:
        request = pod.request
        scores[changed] = -np.inf
        fitting = changed[mask[changed] & (self.cpu[changed] >= request.cpu) & (self.memory[changed] >= request.memory)]
        open_ = self.free[fitting] >= max(request.milli, 1)
        if request.devices:
            enough = open_.sum(1) >= request.devices
            fitting, open_ = fitting[enough], open_[enough]
        if not fitting.size:
            return
        if 0 < request.milli < GPU:
            position, device = np.nonzero(open_)
            nodes = fitting[position]
            after = self.free[nodes]
            after[np.arange(len(nodes)), device] -= request.milli
            values = self.score(pod, nodes, after, device)
            for node, index, value in zip(nodes.tolist(), device.tolist(), values.tolist(), strict=True):
                if value > scores[node]:
                    scores[node], devices[node] = value, index
        else:
            after = self.free[fitting]
            after[open_ & (np.cumsum(open_, 1) <= request.devices)] = 0
            scores[fitting] = self.score(pod, fitting, after, np.zeros(len(fitting), int))

    def _allocate(self, pod: Pod, node: int, device: int) -> None:
        request = pod.request
        self.cpu[node] -= request.cpu
        self.memory[node] -= request.memory
        if 0 < request.milli < GPU:
            self.free[node, device] -= request.milli
        elif request.devices:
            self.free[node, np.flatnonzero(self.free[node] == GPU)[: request.devices]] = 0
        self._changes.append(node)

    def final(self, scores: Array) -> Array:
        return scores

    def score(self, pod: Pod, nodes: Array, after: Array, device: Array) -> Array:
        raise NotImplementedError


class BestFit(Peer):
    """The node with the least left, with cores and GPUs weighted equally, and on it the device with the least left."""

    def score(self, pod: Pod, nodes: Array, after: Array, device: Array) -> Array:
        left = 0.5 * (self.cpu[nodes] - pod.request.cpu) / _CORES + 0.5 * after.sum(1) / (_DEVICES * GPU)
        whole: Array = np.floor(100 * (1 - left))
        if 0 < pod.request.milli < GPU:  # the device decides after the decimal point, which `final` removes
            whole = whole + (GPU - self.free[nodes, device]) / (2 * GPU)
        return whole

    def final(self, scores: Array) -> Array:
        scores = np.floor(scores)
        low, high = scores[scores > -np.inf].min(initial=np.inf), scores.max()
        return scores if not high > low else np.floor(100 * (scores - low) / (high - low))


class FGD(Peer):
    """The node that gains the fewest fragments, which are idle GPUs that typical pods cannot use."""

    def __init__(self, nodes: Sequence[Node], pods: Sequence[Pod]) -> None:
        super().__init__(nodes, pods)
        counts = Counter((pod.request.cpu, pod.request.milli, pod.request.devices, pod.models) for pod in pods)
        typical, seen = [], 0
        for shape, count in counts.most_common():
            if seen >= _TYPICAL * len(pods):
                break
            typical.append((shape, count))
            seen += count
        self._cpu = np.array([shape[0] for shape, _ in typical])
        self._devices = np.array([shape[2] for shape, _ in typical])
        self._part = np.array([count for _, count in typical]) / seen
        self._sizes, self._size = np.unique(np.array([shape[1] for shape, _ in typical]), return_inverse=True)
        self._fit = np.stack([self.allowed(shape[3]) for shape, _ in typical], 1) & (self._devices > 0)
        self._now = self._fragments(np.arange(len(self.cpu)), self.cpu, self.free)

    def _fragments(self, nodes: Array, cpu: Array, free: Array) -> Array:
        idle = free.sum(1)
        large = free[:, None, :] >= np.maximum(self._sizes, 1)[None, :, None]
        count, small = large.sum(2)[:, self._size], (free[:, None, :] * ~large).sum(2)[:, self._size]
        fits = self._fit[nodes] & (self._cpu <= cpu[:, None]) & (count >= self._devices)
        fragments: Array = np.where(fits, small, idle[:, None]) @ self._part
        return fragments

    def score(self, pod: Pod, nodes: Array, after: Array, device: Array) -> Array:
        gained = self._fragments(nodes, self.cpu[nodes] - pod.request.cpu, after) - self._now[nodes]
        scores: Array = np.floor(100 / (1 + np.exp(gained / GPU)))
        return scores

    def _allocate(self, pod: Pod, node: int, device: int) -> None:
        super()._allocate(pod, node, device)
        self._now[node] = self._fragments(np.array([node]), self.cpu[[node]], self.free[[node]])[0]
