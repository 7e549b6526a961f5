"""GPUs that do not exist, on nodes that do not exist: everything but the devices is real.

The platform can be tried, taught and tested on a laptop. Nodes say that they are simulated, and a pod on them is
shown no real GPU, even where the machine has one: what was not granted must not be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aliquot.agent.devices.base import NodeFacts, held
from aliquot.types import DeviceShare


class SimulatedDevices:
    """Nodes as described; their GPUs are always well."""

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = tuple(nodes)
        self._uuids = {(node.name, device.index): device.uuid for node in nodes for device in node.devices}

    def nodes(self) -> tuple[NodeFacts, ...]:
        return self._nodes

    def environment(self, node: str, shares: Sequence[DeviceShare]) -> dict[str, str]:
        names = [self._uuids.get((node, share.index)) or share.uuid or str(share.index) for share in shares]
        return {
            "NVIDIA_VISIBLE_DEVICES": ",".join(names) or "void",
            "CUDA_VISIBLE_DEVICES": "",  # none: CUDA would take the machine's own
            "RUNAI_NUM_OF_GPUS": held(shares),
            "ALIQUOT_SIMULATED": "true",
        }

    def path_entries(self, node: str, shares: Sequence[DeviceShare]) -> tuple[Path, ...]:
        return ()
