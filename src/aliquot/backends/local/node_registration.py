"""Registers our nodes in the store at the start, and updates them when they change.

While the platform runs, a GPU may stop answering, and a program may call an entry point of the driver that the sharing
library does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from aliquot.api import Node
from aliquot.api.node import NodeCondition
from aliquot.backends.local.devices.node_devices import Devices, NodeFacts, node_object
from aliquot.errors import Exists, PlatformError
from aliquot.store.typed_store import Store

log = structlog.get_logger()
_INTERVAL_SECONDS = 5.0  # how late a lost GPU is noticed; asking the driver takes a few milliseconds


class NodeRegistrar:
    def __init__(self, store: Store, devices: Devices, clock: Callable[[], float]) -> None:
        self._store = store
        self._devices = devices
        self._clock = clock
        self._written: dict[str, NodeFacts] = {}

    async def register(self) -> None:
        for facts in self._devices.nodes():
            await self._write(facts)
            log.info("node registered", node=facts.name, gpus=len(facts.devices), simulated=facts.simulated)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Write the nodes that changed; one that cannot be written is tried again at the next refresh."""
        for facts in await asyncio.to_thread(self._devices.nodes):
            if facts != self._written.get(facts.name):
                try:
                    await self._write(facts)
                    log.info("node changed", node=facts.name)
                except PlatformError as exc:
                    log.warning("node not written", node=facts.name, error=str(exc))

    async def _write(self, facts: NodeFacts) -> None:
        """We own devices, amounts and conditions of a node; labels and annotations of others stay."""
        wanted = node_object(facts, now=self._clock())
        try:
            seen = await self._store.create(wanted)
        except Exists:
            seen = await self._store.get(Node, facts.name)
        metadata = replace(
            seen.metadata,
            labels={**seen.metadata.labels, **wanted.metadata.labels},
            annotations={**seen.metadata.annotations, **wanted.metadata.annotations},
        )
        before = {condition.type: condition for condition in seen.status.conditions}
        conditions = tuple(_with_transition(before.get(new.type), new) for new in wanted.status.conditions)
        seen = await self._store.update(replace(seen, metadata=metadata), seen=seen)
        status = replace(wanted.status, conditions=conditions)
        await self._store.update_status(replace(seen, status=status), seen=seen)
        self._written[facts.name] = facts


def _with_transition(before: NodeCondition | None, new: NodeCondition) -> NodeCondition:
    """An unchanged status keeps its transition time."""
    if before is None or before.status != new.status:
        return new
    return replace(new, last_transition_time=before.last_transition_time)
