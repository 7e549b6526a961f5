"""Figures of running jobs: `make bench`. This prints, it never judges.

Aims: a job runs 250 ms after it was submitted (p50); a hundred idle jobs cost at most 1 % of a core; with a thousand
running jobs a new one has its place 30 ms after it came (p50).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.runtimes.pod_folder import folders
from support.stores.process import ServerProcess
from support.waiting import eventually

pytestmark = pytest.mark.bench
JOBS = int(os.environ.get("BENCH_JOBS", "500"))
RUNNING = int(os.environ.get("BENCH_RUNNING", "1000"))
REST_SECONDS = 20
PREFIX = "/apis/aliquot.dev/v1"
SPACE = "runai-bench"
SECONDS = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
# Room for all of them, as parts of GPUs.
CLUSTER = """
nodes:
  - &big
    name: big-1
    cpu: 1000
    memory: 4Ti
    pods: 1000
    gpus: [{count: 16, model: Tesla V100-SXM2-32GB, memoryMiB: 32510}]
  - {<<: *big, name: big-2}
projects: {bench: {quota: {gpu: 32}}}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    preset = tmp_path / "big.yaml"
    preset.write_text(CLUSTER)
    running = ServerProcess(tmp_path / "data", "--simulate", str(preset)).start()
    yield running
    command = [sys.executable, "-m", "aliquot.cli.main", "down", "--data-dir", str(running.folder)]
    subprocess.run(command, timeout=120, check=False)
    running.stop()


@asynccontextmanager
async def session(server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def ready() -> bool:
            async with http.get(f"{PREFIX}/namespaces/{SPACE}") as answer:
                return answer.status == 200

        await eventually(ready, "the project to be ready", SECONDS)
        yield http


def show(title: str, rows: list[tuple[str, str]]) -> None:
    print(f"\n{title}")
    for name, figure in rows:
        print(f"  {name:<58} {figure}")


async def submit(http: aiohttp.ClientSession, name: str, gpu: float = 0.01) -> None:
    spec = {
        "image": "ubuntu",
        "command": ["sleep"],
        "args": ["infinity"],
        "compute": {"gpu": gpu, "cpu": 0.01} if gpu else {},
    }
    async with http.post(
        f"{PREFIX}/namespaces/{SPACE}/workloads", json={"metadata": {"name": name}, "spec": spec}
    ) as answer:
        assert answer.status == 201, await answer.text()


class Phases:
    """When each workload was first seen running, by a watch: no asking disturbs what is measured."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.running: dict[str, float] = {}
        self._wakeup = asyncio.Condition()

    async def follow(self) -> None:
        async for workload in self._changes("workloads"):
            if workload.get("status", {}).get("phase") == "Running":
                async with self._wakeup:
                    self.running.setdefault(workload["metadata"]["name"], time.perf_counter())
                    self._wakeup.notify_all()

    async def _changes(self, kind: str) -> AsyncIterator[Any]:
        query = {"watch": "true", "resourceVersion": "0"}
        path = f"{PREFIX}/namespaces/{SPACE}/{kind}"
        async with self._http.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as stream:
            async for line in stream.content:
                yield json.loads(line)["object"]

    async def reached(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS), self._wakeup:
            await self._wakeup.wait_for(condition)


@asynccontextmanager
async def following(http: aiohttp.ClientSession) -> AsyncIterator[Phases]:
    phases = Phases(http)
    task = asyncio.create_task(phases.follow())
    yield phases
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def spread(took: list[float]) -> str:
    took = sorted(took)
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    return f"{p50 * 1000:.0f} ms p50, {p99 * 1000:.0f} ms p99, {took[0] * 1000:.0f} ms best ({len(took)} jobs)"


async def test_submit_to_running(server: ServerProcess) -> None:
    """One client that waits for each job before it submits the next."""
    async with session(server) as http, following(http) as phases:
        answered, ran = [], []
        for index in range(105):
            name, began = f"one-{index}", time.perf_counter()
            await submit(http, name)
            acknowledged = time.perf_counter()
            await phases.reached(lambda name=name: name in phases.running)  # type: ignore[misc]
            if index >= 5:  # the first ones pay for what is loaded once
                answered.append(acknowledged - began)
                ran.append(phases.running[name] - began)
    show("one client, one job at a time", [("submit -> answer", spread(answered)), ("submit -> Running", spread(ran))])


async def test_submits_a_second(server: ServerProcess) -> None:
    """Eight clients that submit as fast as they are answered, for a while; then until all of it runs."""
    async with session(server) as http, following(http) as phases:
        began = time.perf_counter()
        names: list[str] = []

        async def client(number: int) -> None:
            for index in range(25):
                await submit(http, f"eight-{number}-{index}")
                names.append(f"eight-{number}-{index}")

        await asyncio.gather(*(client(number) for number in range(8)))
        submitted = time.perf_counter() - began
        await phases.reached(lambda: len(phases.running) == len(names))
        took = time.perf_counter() - began
    rows = [
        ("submits acknowledged", f"{len(names) / submitted:.0f} a second"),
        ("jobs running", f"{len(names) / took:.1f} a second"),
    ]
    show("8 clients", rows)


async def test_many_running(server: ServerProcess) -> None:
    """JOBS idle jobs: what they cost the platform while nobody asks, and what asking costs."""
    async with session(server) as http:
        empty = memory(server.pid)
        async with following(http) as phases:
            began = time.perf_counter()
            for start in range(0, JOBS, 25):
                await asyncio.gather(*(submit(http, f"many-{index}") for index in range(start, min(JOBS, start + 25))))
            await phases.reached(lambda: len(phases.running) == JOBS)
            filled = time.perf_counter() - began
        await asyncio.sleep(3)  # what follows a start (status writes, the collector of garbage) is not rest
        used = cpu(server.pid)
        await asyncio.sleep(REST_SECONDS)
        share = (cpu(server.pid) - used) / REST_SECONDS * 100
        rows = [
            ("all running after", f"{filled:.1f} s"),
            ("platform at rest, CPU", f"{share:.2f} % of a core = {share / JOBS * 100:.2f} % per 100 jobs"),
            ("platform at rest, memory", f"{memory(server.pid):.0f} MB ({empty:.0f} MB without jobs)"),
            ("around each job, memory of its own", jobs_memory(server.folder)),
        ]
        rows.append((f"list of {JOBS} workloads", await listing(http, f"{PREFIX}/namespaces/{SPACE}/workloads")))
        rows.append((f"list of {JOBS} pods", await listing(http, f"{PREFIX}/namespaces/{SPACE}/pods")))
        rows.append((f"runai list with {JOBS} jobs", command(server, "list", "-p", "bench")))
    show(f"{JOBS} running jobs", rows)


async def test_event_to_decision(server: ServerProcess) -> None:
    """With RUNNING jobs: from a pod that waits to the same pod with its place, both as a watch sees it."""
    async with session(server) as http:
        async with following(http) as phases:
            for start in range(0, RUNNING, 25):
                await asyncio.gather(*(submit(http, f"many-{n}") for n in range(start, min(RUNNING, start + 25))))
            await phases.reached(lambda: len(phases.running) == RUNNING)
        await asyncio.sleep(3)
        decisions = Decisions(http)
        task = asyncio.create_task(decisions.follow())
        answered = []
        for index in range(105):
            began = time.perf_counter()
            await submit(http, f"new-{index}")
            pod = f"new-{index}-0-0"
            await decisions.reached(lambda pod=pod: pod in decisions.bound)  # type: ignore[misc]
            answered.append(decisions.bound[pod] - began)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    took = [decisions.bound[name] - decisions.seen[name] for name in decisions.bound if name.startswith("new-")][5:]
    rows = [("pod waits -> pod has its place", spread(took)), ("submit -> pod has its place", spread(answered[5:]))]
    show(f"event to decision with {RUNNING} running jobs", rows)


class Decisions(Phases):
    """When each pod was first seen, and first seen with its place."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        super().__init__(http)
        self.seen: dict[str, float] = {}
        self.bound: dict[str, float] = {}

    async def follow(self) -> None:
        async for pod in self._changes("pods"):
            async with self._wakeup:
                self.seen.setdefault(pod["metadata"]["name"], time.perf_counter())
                if pod["spec"].get("nodeName"):
                    self.bound.setdefault(pod["metadata"]["name"], time.perf_counter())
                    self._wakeup.notify_all()


async def listing(http: aiohttp.ClientSession, path: str) -> str:
    took, raw = [], b""
    for _ in range(7):
        began = time.perf_counter()
        async with http.get(path) as answer:
            raw = await answer.read()
        took.append(time.perf_counter() - began)
    return f"{sorted(took)[3] * 1000:.0f} ms median, {min(took) * 1000:.0f} ms best, {len(raw) / 1e6:.2f} MB"


def command(server: ServerProcess, *words: str) -> str:
    took = []
    for _ in range(3):
        began = time.perf_counter()
        script = "import sys; from aliquot.cli.main import runai; sys.exit(runai())"
        subprocess.run(
            [sys.executable, "-c", script, *words],
            check=True,
            capture_output=True,
            env={**os.environ, "ALIQUOT_DATA_DIR": str(server.folder)},
        )
        took.append(time.perf_counter() - began)
    return f"{min(took) * 1000:.0f} ms best of 3"


def memory(pid: int) -> float:
    """Resident, in MB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def cpu(pid: int) -> float:
    """Seconds that a process has used, with those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def jobs_memory(data: Path) -> str:
    """What supervisor and log writer hold that no other process shares, on average."""
    private, processes = 0, 0
    pods = 0
    for folder in folders(data / "pods"):
        process = folder.process()
        if process is None or not process.supervised:
            continue
        pods += 1
        for pid in (process.pid, process.collector, *syscalls.children(process.collector)):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            private += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
            processes += 1
    return (
        f"{private / max(1, pods):.0f} KB in {processes / max(1, pods):.1f} processes, {private / 1024:.0f} MB in all"
    )
