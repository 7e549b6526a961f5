"""The nodes of the cluster as the planner sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aliquot import labels
from aliquot.api import DEFAULT_POOL
from aliquot.api import Node as NodeObject
from aliquot.planner import Node
from aliquot.scheduler.snapshot import node_of


class NodeCache:
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._tuple: tuple[Node, ...] | None = None
        self._with_unhealthy_devices: set[str] = set()

    def nodes(self) -> tuple[Node, ...]:
        """All nodes. The same tuple as before when no node changed."""
        if self._tuple is None:
            self._tuple = tuple(self._nodes.values())
        return self._tuple

    def pool_of(self, name: str) -> str:
        node = self._nodes.get(name)
        return node.pool if node is not None else DEFAULT_POOL

    def has_unhealthy_devices(self, name: str) -> bool:
        return name in self._with_unhealthy_devices

    def update(self, node_object: NodeObject, in_use: Mapping[int, int]) -> bool:
        """Whether the node changed for the planner, unlike in a heartbeat. `in_use`: its devices that pods hold."""
        node = node_of(node_object)
        if labels.DEVICES not in node_object.metadata.annotations:
            node = _with_faults_on_free_devices(node, in_use)
        if all(device.healthy for device in node.devices):
            self._with_unhealthy_devices.discard(node.name)
        else:
            self._with_unhealthy_devices.add(node.name)
        if self._nodes.get(node.name) == node:
            return False
        self._nodes[node.name] = node
        self._tuple = None
        return True

    def remove(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._with_unhealthy_devices.discard(name)
        self._tuple = None


def _with_faults_on_free_devices(node: Node, in_use: Mapping[int, int]) -> Node:
    """A device plugin reports how many devices are unhealthy, not which. They are taken to be free devices as far as
    there are enough: otherwise a free device that does not work would be given out again and again."""
    faults = sum(not device.healthy for device in node.devices)
    if not faults:
        return node
    order = sorted(node.devices, key=lambda device: (device.index in in_use, -device.index))
    unhealthy = {device.index for device in order[:faults]}
    devices = tuple(replace(device, healthy=device.index not in unhealthy) for device in node.devices)
    return replace(node, devices=devices)
