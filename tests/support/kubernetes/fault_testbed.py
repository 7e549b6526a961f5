"""A platform for tests with faults: a real API server, KWOK nodes, our processes behind a fault proxy, and an audit.

Asynchronous parts run in a thread of their own, so that a test reads as a plain list of steps.
"""

from __future__ import annotations

import asyncio
import threading
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
from support.waiting import wait_until

T = TypeVar("T")
SECONDS = 180.0  # until a condition counts as failed; machines are busy
LEASES = ("aliquot-loops", "aliquot-scheduler")


class FaultTestbed:
    def __init__(self, cluster: Cluster, folder: Path, nodes: dict[str, int]) -> None:
        """`nodes`: how many GPUs each has."""
        for name, gpus in nodes.items():
            add_nodes(cluster, [name], gpus)
        self.cluster = cluster
        self.folder = folder
        self.proxy = FaultProxy(cluster)
        self.audit = AllocationAudit(dict(nodes))
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(SECONDS)
        self.processes: list[ServerProcess] = []

    async def _run(self) -> None:
        async with KubernetesDriver(kubeconfig.load([self.cluster.kubeconfig])) as self.driver, self.proxy.running():
            pods = self.audit.informer(self.driver)
            following = asyncio.create_task(pods.run())
            await pods.synced.wait()
            self._ready.set()
            await self._closing.wait()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(30)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    def reset_connections(self) -> None:
        """Resets every connection through the proxy."""
        self._loop.call_soon_threadsafe(self.proxy.reset_connections)

    # --- the platform

    def process(self, name: str, *arguments: str, verb: str = "up", faulty: bool = True) -> ServerProcess:
        """A server process that is not started yet; with `faulty` it reaches the API server through the proxy."""
        config = self.proxy.kubeconfig(self.folder) if faulty else self.cluster.kubeconfig
        process = ServerProcess(self.folder / name, "--kubeconfig", str(config), *arguments, verb=verb)
        self.processes.append(process)
        return process

    def delete_leases(self, *leases: str) -> None:
        """Deletes the leases of dead processes, so that the next one need not wait for them to expire."""
        for name in leases or LEASES:
            with suppress(NotFound):
                self.run(self.driver.delete(KINDS.of(Lease), name, SYSTEM_NAMESPACE))

    def holder(self, lease: str = "aliquot-scheduler") -> str:
        """The leader; empty if there is none."""
        try:
            return self.run(Store(self.driver).get(Lease, lease, SYSTEM_NAMESPACE)).spec.holder_identity or ""
        except NotFound:
            return ""

    # --- users, who are not affected by faults

    def project(self, name: str, gpu: float) -> None:
        self.run(self.driver.create(KINDS.of(Project), document(KINDS.of(Project), name, spec={"quota": {"gpu": gpu}})))
        self.wait_until(lambda: self.has_project(name), f"project {name}")

    def has_project(self, name: str) -> bool:
        try:
            return bool(self._status(Project, name).phase == "Ready")
        except NotFound:
            return False

    def submit(self, name: str, project: str, gpu: float, **spec: Any) -> None:
        compute = {"compute": {"gpu": gpu}} if gpu else {}
        job = {"type": "training", "user": "root", "image": "job", **compute, **spec}
        kind = KINDS.of(Workload)
        self.run(self.driver.create(kind, document(kind, name, f"runai-{project}", job)))

    def delete(self, workload: Workload) -> None:
        self.run(Store(self.driver).delete(workload))

    def finish(self, workload: Workload) -> None:
        """Ends its running pod with success."""
        change = {"status": {"phase": "Succeeded"}}
        name = f"{workload.metadata.name}-0-0"
        self.run(self.driver.patch(KINDS.of(Pod), name, workload.metadata.namespace, change, status=True))

    def cordon(self, node: str, off: bool) -> None:
        """Sets whether the node is unschedulable."""
        self.run(self.driver.patch(KINDS.of(Node), node, "", {"spec": {"unschedulable": off}}))

    def workloads(self) -> dict[str, Workload]:
        return {workload.metadata.name: workload for workload in self.run(Store(self.driver).list(Workload)).items}

    def phases(self) -> dict[str, str | None]:
        return {name: workload.status.phase for name, workload in self.workloads().items()}

    def check(self) -> None:
        self.audit.check(self.workloads().values())

    def clear(self) -> None:
        """Deletes all workloads and waits until no pod is left."""
        for workload in self.workloads().values():
            self.delete(workload)
        self.wait_until(lambda: set(self.audit.pods) == self.audit.deleted, "no pod is left")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Fails at once when a process ends by itself."""

        def is_true() -> bool:
            if condition():
                return True
            for process in self.processes:
                assert not process.fell, f"a process ended by itself:\n{process.log[-3000:]}"
            return False

        try:
            wait_until(is_true, what, SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._report()}") from None

    def _report(self) -> str:
        statuses = [f"{name}: {workload.status}" for name, workload in self.workloads().items()]
        return "\n".join([*statuses, *(process.log[-2000:] for process in self.processes)])

    def _status(self, cls: Any, name: str) -> Any:
        return self.run(Store(self.driver).get(cls, name)).status
