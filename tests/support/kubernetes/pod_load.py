"""Creates thousands of pods and measures how long a scheduler takes; for benchmarks on KWOK nodes."""

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
TIMEOUT_SECONDS = 600.0
_IN_FLIGHT = 16


def load_pod(name: str, namespace: str, scheduler: str, *, gpus: int = 1, gang: tuple[str, int] | None = None) -> Any:
    """A pod that asks for GPUs. `gang` is the gang's name and how many of its pods start together."""
    annotations = {"pod-group-name": gang[0], "aliquot.dev/min-available": str(gang[1])} if gang else {}
    limits = {"cpu": "1", "memory": "100Mi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "job", "resources": {"limits": limits}}],
        },
    }


async def create(driver: KubernetesDriver, pods: Iterable[Any]) -> None:
    in_flight = asyncio.Semaphore(_IN_FLIGHT)

    async def create_pod(data: Any) -> None:
        async with in_flight:
            await driver.create(POD, Document(data))

    async with asyncio.TaskGroup() as group:
        for data in pods:
            group.create_task(create_pod(data))


@dataclass
class Watcher:
    """When each pod got its node, and when it got the condition that says why it has none."""

    bound: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, driver: KubernetesDriver, namespace: str | None = None) -> None:
        listing = await driver.list(POD, namespace)
        async for change in driver.watch(POD, namespace, version=listing.version):
            if change.document is not None:
                self._record(change.type, change.document)

    def _record(self, event: str, document: Document) -> None:
        now, name, data = time.monotonic(), document.name, document.data
        if data["spec"].get("nodeName"):
            self.bound.setdefault(name, now)
        status = data.get("status", {})
        if any(item["type"] == "PodScheduled" and item["status"] == "False" for item in status.get("conditions", ())):
            self.refused.setdefault(name, now)
        if status.get("phase") == "Running":
            self.running.add(name)
        if event == "DELETED":
            self.gone.add(name)
        self._wake.set()

    async def time_when(self, condition: Callable[[], bool]) -> float:
        """Waits until the condition is true; returns the time at which it became true."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                self._wake.clear()
                await self._wake.wait()
        return time.monotonic()


@dataclass(frozen=True)
class Cost:
    """What a process uses: CPU seconds so far, and resident memory in MiB."""

    cpu: float
    memory: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return cls((int(fields[11]) + int(fields[12])) / ticks, resident / 1024)
