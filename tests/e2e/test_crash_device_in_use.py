"""A pod bound to a device whose last pod is still stopping never runs beside it, even if the server is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from aliquot import labels
from aliquot.api import KINDS, DeviceShare, Event, Pod, Workload, decode, shares_text
from aliquot.errors import NotFound
from aliquot.store.driver import Document
from aliquot.store.drivers.rest import RestDriver
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.typed_store import Store
from support.crash.clients import retry_while_unavailable
from support.crash.processes import PodProcessMonitor
from support.stores.namespace import NAMESPACE, document
from support.stores.process import ServerProcess
from support.waiting import eventually

WORKLOAD, POD = KINDS.of(Workload), KINDS.of(Pod)
SPACE = "runai-team-a"
ONE_GPU = """
nodes: [{name: node-1, cpu: 8, memory: 32Gi, gpus: [{model: Tesla V100-SXM2-32GB, memoryMiB: 32510}]}]
projects: {team-a: {quota: {gpu: 1}}}
"""
# Ignores TERM and ends when a file appears.
_STUBBORN = "trap '' TERM; echo ready; while [ ! -e go ]; do sleep 0.05; done"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    preset = tmp_path / "one.yaml"
    preset.write_text(ONE_GPU)
    running = await asyncio.to_thread(ServerProcess(tmp_path / "data", "--simulate", str(preset)).start)
    yield running
    await asyncio.to_thread(_down, running)


def _down(server: ServerProcess) -> None:
    if not server.ready():
        server.kill()
        server.start()
    command = [sys.executable, "-m", "aliquot.cli.main", "down", "--data-dir", str(server.folder)]
    subprocess.run(command, timeout=120, check=False)
    server.stop()


async def test_waits_for_the_stopping_pod(server: ServerProcess) -> None:
    """A pod bound to a GPU whose last pod is still stopping is refused, and its job runs later."""
    driver, monitor = server.driver(), PodProcessMonitor(server.folder)
    try:
        await eventually(lambda: _exists(driver))
        await _submit(driver, "old", _STUBBORN)
        await eventually(lambda: _phase(driver, "old", "Running"))
        old = await _get_pod(driver, "old")
        await eventually(lambda: _ignores_term(monitor, old))
        await _submit(driver, "new", "sleep infinity")
        await eventually(lambda: _waits(driver, "new"))
        await driver.delete(WORKLOAD, "old", SPACE)
        await eventually(lambda: _stops(driver, "old"))
        await asyncio.to_thread(server.kill)
        await _bind_to_busy_device(server.folder / "aliquot.db")
        await asyncio.to_thread(server.start)

        await eventually(lambda: _was_refused(driver))
        assert list(monitor.check()) == [old.metadata.uid]
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert list(monitor.check()) == [old.metadata.uid]

        (monitor.folder(old.metadata.uid).path / "work" / "go").touch()
        await eventually(lambda: _phase(driver, "new", "Running"))
        assert (await _status(driver, "new")).status.pods.failed == 0
        assert list(monitor.check()) == [(await _get_pod(driver, "new")).metadata.uid]
        assert not monitor.processes[old.metadata.uid].alive
    finally:
        await driver.close()


async def _submit(driver: RestDriver, name: str, script: str) -> None:
    spec = {
        "image": "ubuntu",
        "command": ["sh", "-c", script],
        "compute": {"gpu": 1},
        "preemptionGrace": 300,
        "backoffLimit": 6,
    }
    await driver.create(WORKLOAD, document(WORKLOAD, name, SPACE, spec))


async def _exists(driver: RestDriver) -> bool:
    return SPACE in {item.name for item in (await driver.list(NAMESPACE)).items}


async def _status(driver: RestDriver, name: str) -> Workload:
    workload: Document = await retry_while_unavailable(lambda: driver.get(WORKLOAD, name, SPACE))
    return decode(Workload, workload.data)


async def _phase(driver: RestDriver, name: str, phase: str) -> bool:
    return (await _status(driver, name)).status.phase == phase


async def _get_pod(driver: RestDriver, name: str) -> Pod:
    return await retry_while_unavailable(lambda: Store(driver).get(Pod, f"{name}-0-0", SPACE))


async def _waits(driver: RestDriver, name: str) -> bool:
    try:
        return bool((await _status(driver, name)).status.refusals) and not (await _get_pod(driver, name)).spec.node_name
    except NotFound:
        return False


async def _stops(driver: RestDriver, name: str) -> bool:
    return (await _get_pod(driver, name)).metadata.deleted is not None


async def _ignores_term(monitor: PodProcessMonitor, pod: Pod) -> bool:
    """It has set its trap and printed ready."""
    log = monitor.folder(pod.metadata.uid).log
    return log.exists() and b"ready" in log.read_bytes()


async def _bind_to_busy_device(database: Path) -> None:
    """Binds the new pod as a scheduler would that does not know of the old pod."""
    driver = SqliteDriver(database)
    try:
        change = {
            "metadata": {"annotations": {labels.DEVICES: shares_text([DeviceShare(index=0, milli=1000)])}},
            "spec": {"nodeName": "node-1"},
        }
        await driver.patch(POD, "new-0-0", SPACE, change)
    finally:
        await driver.close()


async def _was_refused(driver: RestDriver) -> bool:
    """Whether the event of the refusal names the pod that holds the device."""
    messages = [
        event.message for event in (await retry_while_unavailable(lambda: Store(driver).list(Event, SPACE))).items
    ]
    return any("GPU 0 of node node-1 is not free: held by runai-team-a/old-0-0" in message for message in messages)
