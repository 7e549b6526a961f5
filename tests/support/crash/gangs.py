"""A user that starts and ends gangs: groups of pods that start together or not at all."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from aliquot import labels
from aliquot.api import KINDS, Pod
from aliquot.errors import Conflict, NotFound, Unavailable
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store
from support.crash.clients import retry_while_unavailable
from support.crash.jobs import COUNT
from support.stores.namespace import document

_POD = KINDS.named("Pod")


class GangUser:
    """Starts and ends gangs in a project of its own, whose quota is enough for all of them."""

    def __init__(self, driver: StoreDriver, project: str, seed: int) -> None:
        self._driver, self._project = driver, project
        self._random = random.Random(seed)
        self._number = 0
        self.size: dict[str, int] = {}  # pods by gang, for the gangs that must exist
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

    async def _create(self, name: str, pod: Any) -> None:
        while True:
            try:
                await self._driver.create(_POD, pod)
                return
            except Conflict:
                return  # an earlier attempt without a response took effect
            except Unavailable:
                try:
                    await retry_while_unavailable(lambda: self._driver.get(_POD, name, self.namespace))
                    return
                except NotFound:
                    continue

    def _pod(self, gang: str, name: str, size: int, fraction: str) -> Any:
        spec = {
            "schedulerName": labels.SCHEDULER_NAMES[0],
            "restartPolicy": "Never",
            "priorityClassName": "build",  # otherwise it might be moved, and nothing would recreate its pods
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
        pod = document(_POD, name, self.namespace, spec)
        pod.data["metadata"]["labels"] = {labels.WORKLOAD: gang}
        pod.data["metadata"]["annotations"] = {labels.MIN_AVAILABLE: str(size), labels.GPU_FRACTION: fraction}
        return pod

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
        """In steady state: every gang exists, and either all of its pods have a node or none."""
        pods = (await retry_while_unavailable(lambda: Store(self._driver).list(Pod, self.namespace))).items
        gangs: dict[str, list[Pod]] = {}
        for pod in pods:
            gangs.setdefault(pod.metadata.labels[labels.WORKLOAD], []).append(pod)
        sizes = {gang: len(members) for gang, members in gangs.items()}
        assert sizes == self.size, f"{sizes}, not {self.size}"
        for gang, members in gangs.items():
            placed = {bool(pod.spec.node_name) for pod in members}
            assert len(placed) == 1, f"only a part of {gang} has nodes"
            self.done["whole"] += placed == {True}
