"""Where faults are tried: a real API server, KWOK's nodes, our processes behind a proxy that breaks things, a ledger.

What is asynchronous is in a thread of its own, so that a test reads as a plain list of steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from aliquot.api import KINDS, Lease, Node, Pod, Project, Workload
from aliquot.errors import NotFound
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.typed_store import Store
from support.kubernetes.allocation_audit import AllocationAudit
from support.kubernetes.cluster import Cluster
from support.kubernetes.fault_proxy import FaultProxy
from support.kubernetes.kwok import add_nodes
from support.stores.namespace import document
from support.stores.process import ServerProcess

T = TypeVar("T")
SECONDS = 180.0  # for things to settle on a busy machine
LEASES = ("aliquot-loops", "aliquot-scheduler")


class FaultTestbed:
    def __init__(self, cluster: Cluster, folder: Path, nodes: dict[str, int]) -> None:
        """`nodes`: how many GPUs each has."""
        for name, gpus in nodes.items():
            add_nodes(cluster, [name], gpus)
        self.cluster = cluster
        self.folder = folder
        self.faults = FaultProxy(cluster)
        self.ledger = AllocationAudit(dict(nodes))
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(SECONDS)
        self.processes: list[ServerProcess] = []

    async def _run(self) -> None:
        async with KubernetesDriver(kubeconfig.load([self.cluster.kubeconfig])) as self.driver, self.faults.running():
            pods = self.ledger.follow(self.driver)
            following = asyncio.create_task(pods.run())
            await pods.synced.wait()
            self._ready.set()
            await self._over.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def cut(self) -> None:
        """Every connection by the proxy is reset."""
        self._loop.call_soon_threadsafe(self.faults.cut)

    # --- our side

    def process(self, name: str, *arguments: str, verb: str = "up", faulty: bool = True) -> ServerProcess:
        """One that is not started yet; `faulty`: it reaches the API server by the proxy."""
        config = self.faults.kubeconfig(self.folder) if faulty else self.cluster.kubeconfig
        made = ServerProcess(self.folder / name, "--kubeconfig", str(config), *arguments, verb=verb)
        self.processes.append(made)
        return made

    def forget_leaders(self, *leases: str) -> None:
        """Of processes that are surely dead, so that the next one need not wait for their leases to end."""
        for name in leases or LEASES:
            with suppress(NotFound):
                self.do(self.driver.delete(KINDS.of(Lease), name, SYSTEM_NAMESPACE))

    def holder(self, lease: str = "aliquot-scheduler") -> str:
        """Who leads; empty: nobody."""
        try:
            return self.do(Store(self.driver).get(Lease, lease, SYSTEM_NAMESPACE)).spec.holder_identity or ""
        except NotFound:
            return ""

    # --- the users' side, past every fault

    def project(self, name: str, gpu: float) -> None:
        self.do(self.driver.create(KINDS.of(Project), document(KINDS.of(Project), name, spec={"quota": {"gpu": gpu}})))
        self.until(lambda: self.has_project(name), f"project {name}")

    def has_project(self, name: str) -> bool:
        try:
            return self._status(Project, name).phase == "Ready"
        except NotFound:
            return False

    def submit(self, name: str, project: str, gpu: float, **spec: Any) -> None:
        compute = {"compute": {"gpu": gpu}} if gpu else {}
        job = {"type": "training", "user": "root", "image": "job", **compute, **spec}
        kind = KINDS.of(Workload)
        self.do(self.driver.create(kind, document(kind, name, f"runai-{project}", job)))

    def delete(self, workload: Workload) -> None:
        self.do(Store(self.driver).delete(workload))

    def finish(self, workload: Workload) -> None:
        """Its running pod ends well."""
        change = {"status": {"phase": "Succeeded"}}
        name = f"{workload.metadata.name}-0-0"
        self.do(self.driver.patch(KINDS.of(Pod), name, workload.metadata.namespace, change, status=True))

    def cordon(self, node: str, off: bool) -> None:
        """Whether nothing new may come to a node."""
        self.do(self.driver.patch(KINDS.of(Node), node, "", {"spec": {"unschedulable": off}}))

    def workloads(self) -> dict[str, Workload]:
        return {one.metadata.name: one for one in self.do(Store(self.driver).list(Workload)).items}

    def phases(self) -> dict[str, str]:
        return {name: one.status.phase for name, one in self.workloads().items()}

    def check(self) -> None:
        self.ledger.check(self.workloads().values())

    def clear(self) -> None:
        """No workload and no pod is left."""
        for one in self.workloads().values():
            self.delete(one)
        self.until(lambda: set(self.ledger.lives) == self.ledger.gone, "no pod is left")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            for process in self.processes:
                assert not process.fell, f"a process ended by itself:\n{process.log[-3000:]}"
            assert time.monotonic() < until, f"not in time: {what}\n{self._told()}"
            time.sleep(0.05)

    def _told(self) -> str:
        seen = [f"{name}: {one.status}" for name, one in self.workloads().items()]
        return "\n".join([*seen, *(process.log[-2000:] for process in self.processes)])

    def _status(self, cls: Any, name: str) -> Any:
        return self.do(Store(self.driver).get(cls, name)).status
