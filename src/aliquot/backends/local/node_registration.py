"""Writes our nodes to the store: at the start, and whenever what they have changes.

A GPU may stop answering, and a program may meet an entry point that the sharing library does not know: both are seen
while the platform runs.
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
_SECONDS = 5.0  # a lost GPU may wait so long; asking the driver takes a few milliseconds


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
            await asyncio.sleep(_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """What differs from what was written; what cannot be written now is tried again the next time."""
        for facts in await asyncio.to_thread(self._devices.nodes):
            if facts != self._written.get(facts.name):
                try:
                    await self._write(facts)
                    log.info("node changed", node=facts.name)
                except PlatformError as exc:
                    log.warning("node not written", node=facts.name, error=str(exc))

    async def _write(self, facts: NodeFacts) -> None:
        """Ours to say: devices, amounts and conditions. What others wrote on it stays."""
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
        conditions = tuple(_since(before.get(each.type), each) for each in wanted.status.conditions)
        seen = await self._store.update(replace(seen, metadata=metadata), seen=seen)
        status = replace(wanted.status, conditions=conditions)
        await self._store.update_status(replace(seen, status=status), seen=seen)
        self._written[facts.name] = facts


def _since(before: NodeCondition | None, now: NodeCondition) -> NodeCondition:
    """As long as it says the same it holds since when it first did."""
    if before is None or before.status != now.status:
        return now
    return replace(now, last_transition_time=before.last_transition_time)
