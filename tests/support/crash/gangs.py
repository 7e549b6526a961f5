"""Somebody who starts gangs: pods that begin together or not at all."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from aliquot import labels
from aliquot.api import KINDS, Pod
from aliquot.errors import Conflict, NotFound, Unavailable
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store
from support.crash.clients import patiently
from support.crash.jobs import COUNT
from support.stores.namespace import document

_POD = KINDS.named("Pod")


class Gangs:
    """One person's gangs, in a project of their own whose quota has room for all of them."""

    def __init__(self, driver: StoreDriver, project: str, seed: int) -> None:
        self._driver, self._project = driver, project
        self._random = random.Random(seed)
        self._number = 0
        self.size: dict[str, int] = {}  # the gangs that must be there, whole
        self.done: Counter[str] = Counter()

    @property
    def namespace(self) -> str:
        return f"runai-{self._project}"

    async def step(self) -> None:
        if len(self.size) < 3:
            await self._start()
        elif self._random.random() < 0.5:
            await self._end(self._random.choice(list(self.size)))

    async def _start(self) -> None:
        self._number += 1
        name, size = f"gang-{self._number}", self._random.randint(2, 4)
        fraction = self._random.choice(("0.5", "1"))
        for index in range(size):
            await self._create(f"{name}-{index}", self._pod(name, f"{name}-{index}", size, fraction))
        self.size[name] = size
        self.done["gangs"] += 1

    async def _create(self, name: str, made: Any) -> None:
        while True:
            try:
                await self._driver.create(_POD, made)
                return
            except Conflict:
                return  # an earlier try that nobody answered
            except Unavailable:
                try:
                    await patiently(lambda: self._driver.get(_POD, name, self.namespace))
                    return
                except NotFound:
                    continue

    def _pod(self, gang: str, name: str, size: int, fraction: str) -> Any:
        spec = {
            "schedulerName": labels.SCHEDULER_NAMES[0],
            "restartPolicy": "Never",
            "priorityClassName": "build",  # else it might be moved, and nobody would make its pods again
            "containers": [
                {
                    "name": "main",
                    "image": "ubuntu",
                    "command": ["sh", "-c", COUNT % (1 << 40, 0)],
                    "env": [
                        {"name": "RUNAI_PROJECT", "value": self._project},
                        {"name": "RUNAI_JOB_NAME", "value": name},
                    ],
                }
            ],
        }
        made = document(_POD, name, self.namespace, spec)
        made.data["metadata"]["labels"] = {labels.WORKLOAD: gang}
        made.data["metadata"]["annotations"] = {labels.MIN_AVAILABLE: str(size), labels.GPU_FRACTION: fraction}
        return made

    async def _end(self, gang: str) -> None:
        for index in range(self.size.pop(gang)):
            while True:
                try:
                    await self._driver.delete(_POD, f"{gang}-{index}", self.namespace)
                except NotFound:
                    pass
                except Unavailable:
                    continue
                break

    async def close(self) -> None:
        await self._driver.close()

    async def check(self) -> None:
        """When all is quiet: every gang is there, and all of it runs or nothing of it has a place."""
        pods = (await patiently(lambda: Store(self._driver).list(Pod, self.namespace))).items
        found: dict[str, list[Pod]] = {}
        for pod in pods:
            found.setdefault(pod.metadata.labels[labels.WORKLOAD], []).append(pod)
        there = {gang: len(members) for gang, members in found.items()}
        assert there == self.size, f"{there}, not {self.size}"
        for gang, members in found.items():
            placed = {bool(pod.spec.node_name) for pod in members}
            assert len(placed) == 1, f"a part of {gang} runs"
            self.done["whole"] += placed == {True}
