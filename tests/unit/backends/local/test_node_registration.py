"""Nodes in the store: written at the start, and again when they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot import labels
from aliquot.api import Node, devices_of
from aliquot.api.node import NodeCondition
from aliquot.backends.local.devices.gpu_driver import ProcessUtilization, gpu_utilization
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.node_registration import NodeRegistrar
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.typed_store import Store
from support.gpus import NODE, ONE, TWO, FakeDriver, node_of


class RegisteredNode:
    def __init__(self, folder: Path) -> None:
        self.driver = FakeDriver((ONE, TWO))
        self.devices: RealDevices = node_of(folder, self.driver)
        self.store = Store(MemoryDriver())
        self.now = 100.0
        self.nodes = NodeRegistrar(self.store, self.devices, lambda: self.now)

    async def seen(self) -> Node:
        return await self.store.get(Node, NODE)

    async def condition(self, kind: str) -> NodeCondition:
        (condition,) = (condition for condition in (await self.seen()).status.conditions if condition.type == kind)
        return condition


async def test_a_lost_gpu_is_written(tmp_path: Path) -> None:
    """The scheduler must not use it any more."""
    machine = RegisteredNode(tmp_path)
    await machine.nodes.register()

    machine.driver.lose(1)
    await machine.nodes.refresh()

    assert [device.healthy for device in devices_of(await machine.seen())] == [True, False]


async def test_an_unchanged_node_is_not_written(tmp_path: Path) -> None:
    """An unchanged node causes no watch events."""
    machine = RegisteredNode(tmp_path)
    await machine.nodes.register()
    before = (await machine.seen()).metadata.version

    await machine.nodes.refresh()

    assert (await machine.seen()).metadata.version == before


async def test_transition_time_of_a_condition(tmp_path: Path) -> None:
    """The transition time is that of the change, whatever is written later."""
    machine = RegisteredNode(tmp_path)
    await machine.nodes.register()
    machine.now, machine.devices.unknown_entry_point = 200.0, "cuMemAllocTwice"

    await machine.nodes.refresh()

    outdated, sharing = await machine.condition("ShimOutdated"), await machine.condition("GPUSharing")
    assert (outdated.status, outdated.last_transition_time) == ("True", 200.0)
    assert (sharing.status, sharing.last_transition_time) == ("True", 100.0)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        ([], {}),
        ([("GPU-a", 1, 40), ("GPU-a", 1, 60)], {"GPU-a": 50}),  # one process, two samples
        ([("GPU-a", 1, 40), ("GPU-a", 2, 30), ("GPU-b", 3, 5)], {"GPU-a": 70, "GPU-b": 5}),
        ([("GPU-a", 1, 80), ("GPU-a", 2, 80)], {"GPU-a": 100}),
    ],
)
def test_gpu_utilization(samples: list[tuple[str, int, int]], wanted: dict[str, int]) -> None:
    """The utilization of a GPU is the sum over its processes, at most 100."""
    assert gpu_utilization(ProcessUtilization(uuid, pid, compute, 0) for uuid, pid, compute in samples) == wanted


async def test_utilization_is_written_to_the_node(tmp_path: Path) -> None:
    """In the order of its GPUs, from the first measurement on."""
    machine = RegisteredNode(tmp_path)
    await machine.nodes.register()
    assert labels.GPU_UTILIZATION not in (await machine.seen()).metadata.annotations
    machine.devices.utilization = {"GPU-b": 83}

    await machine.nodes.refresh()

    assert (await machine.seen()).metadata.annotations[labels.GPU_UTILIZATION] == "0,83"
