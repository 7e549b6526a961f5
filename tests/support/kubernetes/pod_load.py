"""Pods by the thousand, and how long a scheduler takes with them; for benches on KWOK's nodes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.api import KINDS, Pod
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver

POD = KINDS.of(Pod)
PATIENCE = 600.0
_IN_FLIGHT = 16


def pod(name: str, namespace: str, scheduler: str, *, gpus: int = 1, gang: tuple[str, int] | None = None) -> Any:
    """One that asks for GPUs; of a gang: its name, and how many start together."""
    annotations = {"pod-group-name": gang[0], "aliquot.dev/min-available": str(gang[1])} if gang else {}
    asks = {"cpu": "1", "memory": "100Mi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "job", "resources": {"limits": asks}}],
        },
    }


async def create(driver: KubernetesDriver, pods: Iterable[Any]) -> None:
    room = asyncio.Semaphore(_IN_FLIGHT)

    async def one(data: Any) -> None:
        async with room:
            await driver.create(POD, Document(data))

    async with asyncio.TaskGroup() as group:
        for data in pods:
            group.create_task(one(data))


@dataclass
class Watcher:
    """When each pod was seen to get its node, and to be told why it has none."""

    bound: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    _bell: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, driver: KubernetesDriver, namespace: str | None = None) -> None:
        listing = await driver.list(POD, namespace)
        async for change in driver.watch(POD, namespace, version=listing.version):
            if change.document is not None:
                self._see(change.type, change.document)

    def _see(self, step: str, document: Document) -> None:
        now, name, data = time.monotonic(), document.name, document.data
        if data["spec"].get("nodeName"):
            self.bound.setdefault(name, now)
        status = data.get("status", {})
        if any(one["type"] == "PodScheduled" and one["status"] == "False" for one in status.get("conditions", ())):
            self.told.setdefault(name, now)
        if status.get("phase") == "Running":
            self.running.add(name)
        if step == "DELETED":
            self.gone.add(name)
        self._bell.set()

    async def until(self, condition: Callable[[], bool]) -> float:
        """When it came to be so."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._bell.clear()
                await self._bell.wait()
        return time.monotonic()


@dataclass(frozen=True)
class Cost:
    """What a process has used: CPU seconds, and MiB of memory that are its own."""

    cpu: float
    memory: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return cls((int(fields[11]) + int(fields[12])) / ticks, resident / 1024)
