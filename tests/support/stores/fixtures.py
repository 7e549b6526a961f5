"""Every body behind one fixture: a test that takes `place` runs on all of them."""

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
from support.stores.patient import PatientBody
from support.stores.process import ServerProcess

CALM = ("memory", "sqlite", "remote", "kubernetes")
# The same promises while the process behind the body is killed and started again at random.
UNDER_FIRE = ("remote-under-fire", "kubernetes-under-fire")
_numbers = itertools.count()


class Fire:
    """Kills and restarts something at random, as long as a test stands in it."""

    def __init__(self, strike: Callable[[], None], pause: tuple[float, float]) -> None:
        self._strike = strike
        self._pause = pause
        self._burning = threading.Event()
        self._over = threading.Event()
        self.kills = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextmanager
    def burning(self) -> Iterator[None]:
        self._burning.set()
        try:
            yield
        finally:
            self._burning.clear()

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._over.is_set():
            self._burning.wait(1)
            if self._burning.is_set() and not self._over.wait(chance.uniform(*self._pause)):
                self._strike()
                self.kills += 1

    def put_out(self) -> None:
        self._over.set()
        self._thread.join(60)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("server") / "data", "--api-only").start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def burning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Fire]]:
    running = ServerProcess(tmp_path_factory.mktemp("burning") / "data", "--api-only").start()

    def strike() -> None:
        running.kill()
        running.start()

    fire = Fire(strike, (0.2, 2.0))
    yield running, fire
    fire.put_out()
    running.stop()
    print(f"\nserver killed {fire.kills} times under the conformance suite")


@pytest.fixture(scope="session")
def burning_cluster() -> Iterator[tuple[Cluster, Fire]]:
    # Without its cache the server can serve a watch from before its own start, so that no change may be missing here.
    # With it the answer would be "too old", which test_kubernetes_watch covers.
    running = Cluster(available_programs(), "--watch-cache=false").start()
    run_in_thread(install_kinds(running))

    def strike() -> None:
        running.kill_apiserver()
        running.start_apiserver()

    fire = Fire(strike, (0.2, 3.0))
    yield running, fire
    fire.put_out()
    running.stop()
    print(f"\nkube-apiserver killed {fire.kills} times under the conformance suite")


@pytest_asyncio.fixture(params=CALM + UNDER_FIRE)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    async with asyncio.timeout(300):
        async for found in _place(request, tmp_path):
            yield found


@pytest_asyncio.fixture(params=("memory", "sqlite"))
async def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    """The bodies that live in our own process."""
    async for found in _place(request, tmp_path):
        yield found


async def _place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreNamespace]:
    flavour = request.param
    fire: Fire | None = None
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
        case "remote-under-fire":
            server, fire = request.getfixturevalue("burning_server")
            driver = PatientBody(server.driver())
        case "kubernetes-under-fire":
            cluster, fire = request.getfixturevalue("burning_cluster")
            driver = PatientBody(KubernetesDriver(kubeconfig.load([cluster.kubeconfig])))
        case _:
            raise AssertionError(flavour)
    found = StoreNamespace(driver, f"t{os.getpid()}-{next(_numbers)}", flavour)
    try:
        await driver.create(NAMESPACE, document(NAMESPACE, found.namespace))
        if fire is None:
            yield found
        else:
            with fire.burning():
                yield found
    finally:
        await found.close()
        await driver.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A behaviour that a body cannot show is not run on it, instead of passing there without having looked."""
    out = [item for item in items if not _applies(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if _applies(item)]


def _applies(item: pytest.Item) -> bool:
    if item.get_closest_marker("calm") and "under-fire" in item.name:
        return False
    return not item.get_closest_marker("on_kubernetes") or "[kubernetes]" in item.name
