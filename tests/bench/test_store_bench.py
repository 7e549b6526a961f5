"""Figures of the embedded platform: `make bench`. Ratios are of one run; this prints, it never judges."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aliquot.api import KINDS
from aliquot.store.driver import Document
from aliquot.store.drivers.sqlite import SqliteDriver
from support.stores.namespace import NAMESPACE, document
from support.stores.process import ServerProcess

pytestmark = pytest.mark.bench
WORKLOAD, POD = KINDS.named("Workload"), KINDS.named("Pod")
SIZE = int(os.environ.get("BENCH_OBJECTS", "10000"))
PREFIX = "/apis/aliquot.dev/v1"
SPACE = "runai-bench"


def large_workload(index: int) -> Document:
    """About what a real submission is: 1.3 KB."""
    spec = {
        "type": "training",
        "image": "nvcr.io/nvidia/pytorch:26.01-py3",
        "command": ["python"],
        "args": ["/workspace/train.py", "--dataset_dir=/mnt/mount_0/dataset/imagenet", f"--seed={index}"],
        "environment": [{"name": f"VARIABLE_{number}", "value": f"value-{number}-{index}"} for number in range(8)],
        "compute": {"gpu": 1, "cpu": 4, "memory": "16Gi", "largeShm": True},
        "user": "researcher",
    }
    return document(WORKLOAD, f"job-{index:05}", SPACE, spec, labels={"team": f"team-{index % 20}", "app": "bench"})


def large_pod(index: int) -> Document:
    spec = {
        "containers": [
            {
                "name": "main",
                "image": "nvcr.io/nvidia/pytorch:26.01-py3",
                "args": ["/workspace/train.py", f"--seed={index}"],
                "env": [{"name": f"VARIABLE_{number}", "value": f"value-{number}-{index}"} for number in range(8)],
                "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "4", "memory": "16Gi"}},
            }
        ],
        "nodeName": f"node-{index // 8:04}",
        "schedulerName": "aliquot",
    }
    owner = {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": f"job-{index:05}", "uid": f"uid-{index}"}
    return document(POD, f"job-{index:05}-0-0", SPACE, spec, labels={"app": "bench"}, ownerReferences=[owner])


async def fill(path: Path) -> None:
    driver = SqliteDriver(path, synchronous="OFF")
    await driver.create(NAMESPACE, document(NAMESPACE, SPACE))
    for start in range(0, SIZE, 250):
        made = await asyncio.gather(
            *(driver.create(WORKLOAD, large_workload(i)) for i in range(start, min(SIZE, start + 250)))
        )
        pods = []
        for index, owner in zip(range(start, min(SIZE, start + 250)), made, strict=True):
            data = large_pod(index).data
            data["metadata"]["ownerReferences"][0]["uid"] = owner.uid  # else the collector takes them for orphans
            pods.append(driver.create(POD, Document(data)))
        await asyncio.gather(*pods)
    await driver.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with SIZE workloads and their pods."""
    folder = tmp_path_factory.mktemp("bench") / "data"
    folder.mkdir(mode=0o700)
    asyncio.run(fill(folder / "aliquot.db"))
    server = ServerProcess(folder, "--api-only").start()
    yield server
    server.stop()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data", "--api-only").start()
    yield server
    server.stop()


def session(server: ServerProcess) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {server.token}"}, connector=connector)


def show(title: str, rows: list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:<58} {figure}")


async def rate(clients: int, seconds: float, write: Callable[[int, int], Awaitable[Any]]) -> float:
    """Writes a second over a while, by so many clients that each wait for their answer."""
    done, end = 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal done
        index = 0
        while time.perf_counter() < end:
            await write(number, index)
            index += 1
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return done / (time.perf_counter() - began)


async def test_durable_writes(empty: ServerProcess) -> None:
    """Creates over HTTP, each answered when it is on the disk."""
    async with session(empty) as http:
        made = {"metadata": {"name": "bench"}, "spec": {"quota": {"gpu": 1}}}
        async with http.post(f"{PREFIX}/projects", json=made) as answer:
            assert answer.status == 201, await answer.text()
        while True:
            async with http.get(f"{PREFIX}/namespaces/{SPACE}") as answer:
                if answer.status == 200:
                    break
        bytes_each = len(large_workload(0).raw)
        rates = {}
        for clients in (1, 8, 32):

            async def write(number: int, index: int, clients: int = clients) -> None:
                data = large_workload(index).data
                data["metadata"]["name"] = f"w-{clients}-{number}-{index}"
                async with http.post(f"{PREFIX}/namespaces/{SPACE}/workloads", json=data) as answer:
                    assert answer.status == 201, await answer.text()

            rates[clients] = await rate(clients, 5, write)
    show(
        f"durable writes over HTTP ({bytes_each} bytes each)",
        [(f"{clients} clients", f"{figure:.0f} writes/s") for clients, figure in rates.items()],
    )


async def test_cost_of_durability(tmp_path: Path) -> None:
    """The same writes to the body itself, with and without the sync."""
    rates = {}
    for mode in ("FULL", "NORMAL", "OFF"):
        for clients in (1, 8, 64):
            driver = SqliteDriver(tmp_path / f"{mode}-{clients}.db", synchronous=mode)
            await driver.create(NAMESPACE, document(NAMESPACE, SPACE))

            async def write(number: int, index: int, driver: SqliteDriver = driver) -> None:
                data = large_workload(index).data
                data["metadata"]["name"] = f"w-{number}-{index}"
                await driver.create(WORKLOAD, Document(data))

            rates[mode, clients] = await rate(clients, 2, write)
            await driver.close()
    rows = [
        (
            f"{clients} writers",
            f"{rates['FULL', clients]:.0f} writes/s durable = {rates['FULL', clients] / rates['OFF', clients]:.2f}"
            " of unsynced"
            f" ({rates['NORMAL', clients] / rates['OFF', clients]:.2f} with NORMAL)",
        )
        for clients in (1, 8, 64)
    ]
    show("what durability costs, at the driver", rows)


async def test_list(full: ServerProcess) -> None:
    """Listing everything, from the request to the last byte."""
    rows = []
    async with session(full) as http:
        for name, path in (
            (f"list of {SIZE} workloads", f"{PREFIX}/workloads"),
            (f"list of {SIZE} pods", f"{PREFIX}/pods"),
            ("one team's workloads by label (1 in 20)", f"{PREFIX}/workloads?labelSelector=team%3Dteam-7"),
            ("one workload", f"{PREFIX}/namespaces/{SPACE}/workloads/job-00042"),
        ):
            took = []
            for _ in range(7):
                began = time.perf_counter()
                async with http.get(path) as answer:
                    raw = await answer.read()
                took.append(time.perf_counter() - began)
            rows.append(
                (
                    name,
                    f"{min(took) * 1000:.1f} ms best, {sorted(took)[3] * 1000:.1f} ms median, {len(raw) / 1e6:.2f} MB",
                )
            )
    show("reads over HTTP", rows)


async def test_fan_out(full: ServerProcess) -> None:
    """One write, a hundred watchers: until the last of them has it."""
    watchers, writes = 100, 50
    async with session(full) as http:
        async with http.get(f"{PREFIX}/departments") as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        arrived = [0] * watchers
        all_there = asyncio.Event()

        async def watch(number: int) -> None:
            query = f"watch=true&resourceVersion={version}"
            async with http.get(f"{PREFIX}/departments?{query}", timeout=aiohttp.ClientTimeout(total=None)) as stream:
                async for _ in stream.content:
                    arrived[number] += 1
                    if min(arrived) >= wanted:
                        all_there.set()

        wanted = 1
        tasks = [asyncio.create_task(watch(number)) for number in range(watchers)]
        latencies = []
        for index in range(writes):
            all_there.clear()
            wanted = index + 1
            began = time.perf_counter()
            async with http.post(f"{PREFIX}/departments", json={"metadata": {"name": f"fan-{index}"}}) as answer:
                assert answer.status == 201
            await asyncio.wait_for(all_there.wait(), 60)
            if index >= 5:
                latencies.append(time.perf_counter() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    latencies.sort()
    rows = [
        ("write to the last of 100 watchers, p50", f"{latencies[len(latencies) // 2] * 1000:.1f} ms"),
        ("p99", f"{latencies[-1] * 1000:.1f} ms"),
        ("events delivered a second", f"{watchers / (sum(latencies) / len(latencies)):.0f}"),
    ]
    show("watch fan-out", rows)


def test_memory(full: ServerProcess, tmp_path: Path) -> None:
    """Resident memory of the server with everything in it, alone and with all loops."""

    def resident(pid: int) -> float:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) / 1024

    idle = ServerProcess(tmp_path / "data").start()
    rows = [("platform with nothing in it", f"{resident(idle.pid):.0f} MB")]
    idle.stop()
    rows.append((f"server with {SIZE} workloads and {SIZE} pods", f"{resident(full.pid):.0f} MB"))
    full.stop()
    whole = ServerProcess(full.folder).start()
    time.sleep(20)  # the loops have looked at everything by then
    rows.append(("the same with scheduler, controllers and agent", f"{resident(whole.pid):.0f} MB"))
    whole.stop()
    full.start()
    show("memory", rows)


def test_start_up() -> None:
    """`aliquot --help` against an interpreter that does nothing."""

    def best(*command: str) -> float:
        took = []
        for _ in range(15):
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            took.append(time.perf_counter() - began)
        return min(took)

    script = str(Path(sys.executable).with_name("aliquot"))
    nothing, help_ = best(sys.executable, "-c", "pass"), best(script, "--help")
    figure = f"{help_ * 1000:.0f} ms, {help_ / nothing:.1f} times `python -c pass` ({nothing * 1000:.0f} ms)"
    show("start-up", [("aliquot --help", figure)])


def test_record() -> None:
    """Says where this was measured."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    show(
        "measured on",
        [("processor", f"{model}, {os.cpu_count()} cores"), ("Python", json.dumps(sys.version.split()[0]))],
    )
