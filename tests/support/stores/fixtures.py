"""Every store driver behind one fixture: a test that takes `store` runs on each of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from aliquot.store.driver import StoreDriver
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.kubernetes.fixtures import available_programs, install_kinds, run_in_thread
from support.stores.namespace import NAMESPACE, StoreNamespace, document
from support.stores.process import ServerProcess
from support.stores.retrying_driver import RetryingDriver

STABLE_DRIVERS = ("memory", "sqlite", "remote", "kubernetes")
# The same drivers while the server process is killed and restarted at random.
RESTARTED_DRIVERS = ("remote-restarted", "kubernetes-restarted")
_numbers = itertools.count()


class RandomRestarts:
    """Kills and restarts a process at random times while a test is inside `active`."""

    def __init__(self, restart: Callable[[], None], pause: tuple[float, float]) -> None:
        self._restart = restart
        self._pause = pause
        self._active = threading.Event()
        self._stopped = threading.Event()
        self.kills = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextmanager
    def active(self) -> Iterator[None]:
        self._active.set()
        try:
            yield
        finally:
            self._active.clear()

    def _run(self) -> None:
        rng = random.Random(7)
        while not self._stopped.is_set():
            self._active.wait(1)
            if self._active.is_set() and not self._stopped.wait(rng.uniform(*self._pause)):
                self._restart()
                self.kills += 1

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("server") / "data", "--api-only").start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def restarted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, RandomRestarts]]:
    running = ServerProcess(tmp_path_factory.mktemp("restarted") / "data", "--api-only").start()

    def restart() -> None:
        running.kill()
        running.start()

    restarts = RandomRestarts(restart, (0.2, 2.0))
    yield running, restarts
    restarts.stop()
    running.stop()
    print(f"\nserver killed {restarts.kills} times during the conformance suite")


@pytest.fixture(scope="session")
def restarted_cluster() -> Iterator[tuple[Cluster, RandomRestarts]]:
    # Without its watch cache the server can serve a watch from before its own start, so no change may be missing here.
    # With the cache the response would be "too old", which test_kubernetes_watch covers.
    running = Cluster(available_programs(), "--watch-cache=false").start()
    run_in_thread(install_kinds(running))

    def restart() -> None:
        running.kill_apiserver()
        running.start_apiserver()

    restarts = RandomRestarts(restart, (0.2, 3.0))
    yield running, restarts
    restarts.stop()
    running.stop()
    print(f"\nkube-apiserver killed {restarts.kills} times during the conformance suite")


@pytest_asyncio.fixture(params=STABLE_DRIVERS + RESTARTED_DRIVERS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    async with asyncio.timeout(300):
        async for namespace in _open_namespace(request, tmp_path):
            yield namespace


@pytest_asyncio.fixture(params=("memory", "sqlite"))
async def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    """The drivers that run in the test process."""
    async for namespace in _open_namespace(request, tmp_path):
        yield namespace


async def _open_namespace(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    flavour = request.param
    restarts: RandomRestarts | None = None
    driver: StoreDriver
    match flavour:
        case "memory":
            driver = MemoryDriver()
        case "sqlite":
            driver = SqliteDriver(tmp_path / "store.db")
        case "remote":
            driver = request.getfixturevalue("server").driver()
        case "kubernetes":
            cluster = request.getfixturevalue("cluster_with_kinds")
            driver = KubernetesDriver(kubeconfig.load([cluster.kubeconfig]))
        case "remote-restarted":
            server, restarts = request.getfixturevalue("restarted_server")
            driver = RetryingDriver(server.driver())
        case "kubernetes-restarted":
            cluster, restarts = request.getfixturevalue("restarted_cluster")
            driver = RetryingDriver(KubernetesDriver(kubeconfig.load([cluster.kubeconfig])))
        case _:
            raise AssertionError(flavour)
    namespace = StoreNamespace(driver, f"t{os.getpid()}-{next(_numbers)}", flavour)
    try:
        await driver.create(NAMESPACE, document(NAMESPACE, namespace.namespace))
        if restarts is None:
            yield namespace
        else:
            with restarts.active():
                yield namespace
    finally:
        await namespace.close()
        await driver.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests on drivers that cannot show the behaviour, instead of letting them pass without a check."""
    deselected = [item for item in items if not _applies(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if _applies(item)]


def _applies(item: pytest.Item) -> bool:
    if item.get_closest_marker("stable_server") and "-restarted" in item.name:
        return False
    return not item.get_closest_marker("on_kubernetes") or "[kubernetes]" in item.name
