"""Our scheduler and kube-scheduler on a real API server with KWOK nodes, in one run.

Both get the same pods, one after the other, on the same control plane; kube-scheduler without its limit on requests.
Time is measured from the first binding that is observed to the last. All pods exist before the scheduler starts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from aliquot.api import KINDS, Metadata, Namespace, Project, Quota, Workload
from aliquot.api.project import ProjectSpec
from aliquot.store.drivers.kubernetes import KubernetesDriver, install
from aliquot.store.http import kubeconfig
from aliquot.store.typed_store import Store
from support.kubernetes.cluster import Cluster, free_port
from support.kubernetes.kwok import add_nodes, kwok_cluster
from support.kubernetes.pod_load import POD, Cost, Watcher, create, load_pod
from support.stores.namespace import document
from support.stores.running import running

pytestmark = [pytest.mark.bench, pytest.mark.kube]
GPUS = 8
JOBS_PER_SECOND, SECONDS = 20, 20
WORKLOAD = KINDS.of(Workload)
SIZES = tuple(int(size) for size in os.environ.get("ALIQUOT_BENCH_NODES", "200,500").split(","))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # The API server's limit on requests in flight is not what is measured here.
    running_cluster = kwok_cluster("--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000")
    yield running_cluster
    running_cluster.stop()


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[KubernetesDriver]:
    async with KubernetesDriver(kubeconfig.load([cluster.kubeconfig])) as driver:
        yield driver


@contextmanager
def aliquot_process(cluster: Cluster, folder: Path, part: str = "scheduler") -> Iterator[int]:
    """Our scheduler, or another part, alone; yields its process id."""
    command = [
        sys.executable, "-m", "aliquot.cli.main", "serve", "--parts", part, "--port", "0",
        "--kubeconfig", str(cluster.kubeconfig), "--data-dir", str(folder / part), "--log-format", "text",
    ]  # fmt: skip
    with (folder / f"{part}.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def kube_scheduler(cluster: Cluster, folder: Path) -> Iterator[int]:
    """kube-scheduler; yields its process id."""
    config = str(cluster.kubeconfig)
    command = [
        str(cluster.binaries / "kube-scheduler"), f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}", "--leader-elect=false", "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}", f"--cert-dir={folder}", "--kube-api-qps=5000", "--kube-api-burst=5000",
    ]  # fmt: skip
    with (folder / "stock.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


async def create_project(driver: KubernetesDriver, name: str, gpus: int) -> str:
    """Creates a project and its namespace, because no controller runs."""
    namespace = f"runai-{name}"
    store = Store(driver)
    await store.create(Project(metadata=Metadata(name=name), spec=ProjectSpec(quota=Quota(gpu=gpus * 1000))))
    await store.create(Namespace(metadata=Metadata(name=namespace, labels={"aliquot.dev/project": name})))
    return namespace


async def delete_pods(driver: KubernetesDriver, watcher: Watcher) -> None:
    for item in (await driver.list(POD)).items:
        await driver.delete(POD, item.name, item.namespace, grace_seconds=0)
    async with asyncio.timeout(300):
        while (await driver.list(POD)).items:  # noqa: ASYNC110  # the store has no event for a condition
            await asyncio.sleep(0.2)
    watcher.bound.clear()


def report(what: str, **figures: float) -> None:
    print(f"{what:48}", "  ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)


async def fill(
    driver: KubernetesDriver, watcher: Watcher, count: int, start: object, name: str, namespace: str
) -> None:
    """Creates all pods, then starts the scheduler."""
    scheduler = "aliquot" if name == "aliquot" else "default-scheduler"
    await create(driver, (load_pod(f"{name}-{index}", namespace, scheduler) for index in range(count)))
    with start as pid:  # type: ignore[attr-defined]
        await watcher.time_when(lambda: bool(watcher.bound))
        before, began = Cost.of(pid), time.monotonic()
        end = await watcher.time_when(lambda: len(watcher.bound) == count)
        after = Cost.of(pid)
        seconds = end - began
        report(
            f"fill {count} by {name}", pods_per_s=count / seconds, s=seconds,
            client_cpu_ms_per_pod=1000 * (after.cpu - before.cpu) / count, memory_mib=after.memory,
        )  # fmt: skip


@pytest.mark.parametrize("nodes", SIZES)
async def test_scheduling_on_a_cluster(cluster: Cluster, tmp_path: Path, nodes: int) -> None:
    """Fills all GPUs, reclaims one, reclaims many for a gang, and refuses a gang that cannot run."""
    await asyncio.to_thread(add_nodes, cluster, [f"node-{index:04}" for index in range(nodes)])
    count, watcher = nodes * GPUS, Watcher()
    gang = 128 if nodes < 500 else 250
    async with connected(cluster) as driver, connected(cluster) as watching:
        await install(driver)
        owner, borrower = await create_project(driver, "owner", count), await create_project(driver, "borrower", 0)
        plain = await asyncio.to_thread(cluster.create_namespace)
        async with running(watcher.run(watching)):
            print(f"\n{nodes} nodes x {GPUS} GPUs")
            await fill(driver, watcher, count, kube_scheduler(cluster, tmp_path), "stock", plain)
            await delete_pods(driver, watcher)
            await fill(driver, watcher, count, aliquot_process(cluster, tmp_path), "aliquot", borrower)
            with aliquot_process(cluster, tmp_path):
                await warm(driver, watcher, owner)
                await measure(driver, watcher, owner, gang)
            await costs(cluster, tmp_path, driver, watcher, owner)


async def warm(driver: KubernetesDriver, watcher: Watcher, namespace: str) -> None:
    """Waits for the first decision after the start, when the scheduler reads everything."""
    await create(driver, [load_pod("first", namespace, "aliquot")])
    await watcher.time_when(lambda: "first" in watcher.bound)


async def measure(driver: KubernetesDriver, watcher: Watcher, namespace: str, gang: int) -> None:
    began = time.monotonic()
    await create(driver, [load_pod("one", namespace, "aliquot")])
    report("reclaim one GPU", s=await watcher.time_when(lambda: "one" in watcher.bound) - began)

    names = [f"gang-{index}" for index in range(gang)]
    began = time.monotonic()
    await create(driver, (load_pod(name, namespace, "aliquot", gang=("gang", gang)) for name in names))
    created = time.monotonic()
    end = await watcher.time_when(lambda: all(name in watcher.bound for name in names))
    report(f"gang of {gang} that reclaims", s=end - began, after_the_last_pod_came_s=end - created)

    names = [f"never-{index}" for index in range(gang)]
    began = time.monotonic()
    # No node has nine GPUs, and a gang is refused only when all of its pods exist.
    await create(driver, (load_pod(name, namespace, "aliquot", gang=("never", gang), gpus=GPUS + 1) for name in names))
    created = time.monotonic()
    end = await watcher.time_when(lambda: all(name in watcher.refused for name in names))
    report(f"gang of {gang} refused", s=end - began, after_the_last_pod_came_s=end - created)


async def costs(cluster: Cluster, folder: Path, driver: KubernetesDriver, watcher: Watcher, namespace: str) -> None:
    """The cost of each of our processes with all GPUs in use: idle, and while jobs are submitted."""
    with ExitStack() as stack:
        pids = {
            part: stack.enter_context(aliquot_process(cluster, folder, part))
            for part in ("server", "loops", "scheduler")
        }
        await submit(driver, "first", namespace)
        await watcher.time_when(lambda: "first-0-0" in watcher.bound)
        await asyncio.sleep(60)  # the controllers first write events for all these pods
        before = {part: Cost.of(pid) for part, pid in pids.items()}
        await asyncio.sleep(SECONDS)
        idle = {part: Cost.of(pid) for part, pid in pids.items()}
        began, jobs = time.monotonic(), 0
        while time.monotonic() < began + SECONDS:
            await submit(driver, f"job-{jobs}", namespace)
            jobs += 1
            await asyncio.sleep(max(0.0, began + jobs / JOBS_PER_SECOND - time.monotonic()))
        seconds = time.monotonic() - began
        load = {part: Cost.of(pid) for part, pid in pids.items()}
        await watcher.time_when(lambda: all(f"job-{index}-0-0" in watcher.bound for index in range(jobs)))
        report("jobs submitted", per_s=jobs / seconds, all_placed_after_s=time.monotonic() - began - seconds)
        for part in pids:
            report(
                part,
                rest_cpu_percent=100 * (idle[part].cpu - before[part].cpu) / SECONDS,
                rest_memory_mib=idle[part].memory,
                load_cpu_percent=100 * (load[part].cpu - idle[part].cpu) / seconds,
                load_memory_mib=load[part].memory,
            )


async def submit(driver: KubernetesDriver, name: str, namespace: str) -> None:
    """Submits a job without a GPU, which always fits."""
    spec = {"type": "training", "image": "job", "user": "root", "compute": {"cpu": 0.1}}
    await driver.create(WORKLOAD, document(WORKLOAD, name, namespace, spec))
