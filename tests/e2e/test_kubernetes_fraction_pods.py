"""GPU fractions on a real node: a real kubelet starts the pods, the sharing library enforces their limits.

The GPUs are simulated: a device plugin assigns them, and the driver's libraries are those of tests/native, mounted into
the pods as NVIDIA's container toolkit would do.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aliquot import labels
from aliquot.api import DeviceShare, Pod, shares_of
from aliquot.backends.kubernetes.node_files import NAME, Installer, daemon_set
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.backends.kubernetes.unstructured_kinds import DAEMON_SET
from aliquot.errors import Conflict, Unavailable
from aliquot.store.driver import Document
from native.rig import CONTEXT
from support.gpus.fake_driver import CARD_MIB, DRIVER_PATH, UUIDS, install_fake_driver
from support.kubernetes.cluster import free_port
from support.kubernetes.fixtures import available_nodes
from support.kubernetes.gpu_sharing import SharingHarness, sharing, webhook
from support.kubernetes.images import busybox, image, with_libraries
from support.kubernetes.kinds import POD
from support.seeds.platform import Platform
from support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("nodes")]

SETTINGS = GpuSharingSettings(image="busybox:latest", idle_seconds=0.05, hold_seconds=120.0)
JOB, FILES, WITH_DRIVER = "fake-driver/job:1", "fake-driver/files:1", "fake-driver/driver:1"


@pytest.fixture(scope="module")
def gpu_node(native_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A separate cluster, because its GPUs must have the UUIDs of the fake driver."""
    from support.kubernetes.nodes import NodeCluster

    cluster = NodeCluster(available_nodes(), nodes=1)
    node = cluster.nodes[0]
    node.gpus = list(UUIDS)
    folder = tmp_path_factory.mktemp("images")
    filler = folder / "filler"
    source = Path(__file__).parents[1] / "support" / "kubernetes" / "fill_gpu_memory.c"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", source, "-ldl", "-o", filler], check=True, timeout=120)
    program = {**with_libraries(filler), "bin/filler": filler}
    files = {**busybox(), "libgpushare.so": native_build / "plain" / "libgpushare.so"}
    images = [
        image(folder / "job.tar", JOB, {**busybox(), **program}, ["/bin/sleep", "86400"]),
        image(
            folder / "with_driver.tar",
            WITH_DRIVER,
            {
                **busybox(),
                **program,
                **{f"driver/lib{n}.so.1": native_build / f"lib{n}.so.1" for n in ("cuda", "nvidia-ml")},
            },
            ["/bin/sleep", "86400"],
            {"LD_LIBRARY_PATH": "/driver", "FAKE_CARD": "/tmp/card"},
        ),
        image(folder / "files.tar", FILES, files, ["/bin/sh"]),
    ]
    try:
        cluster.start()
        for tar in images:
            node.load(tar)
        install_fake_driver(native_build, node.folder / "run" / "fake-driver")
        cluster.cluster.kubectl("label", "node", node.name, f"{labels.GPU_MEMORY}={CARD_MIB}")
        yield cluster
    finally:
        cluster.stop()


@pytest_asyncio.fixture
async def harness(gpu_node: Any) -> AsyncIterator[SharingHarness]:
    """GPU sharing on that cluster, with the library installed by the DaemonSet."""
    async with sharing(gpu_node.cluster, SETTINGS) as running, webhook(running):
        script = "mkdir -p /host/gates && chmod 1777 /host/gates && cp /libgpushare.so /host/library/libgpushare.so"
        await running.driver.apply(DAEMON_SET, daemon_set(SETTINGS, Installer(FILES, ("/bin/sh", "-c", script))))

        async def is_installed() -> bool:
            for pod in (await running.driver.list(POD, labels.SYSTEM_NAMESPACE)).items:
                if not pod.data["spec"].get("nodeName"):  # kube-scheduler does not run here
                    await running.driver.bind(pod.name, pod.namespace, "node-1", {})
            status = (await running.driver.get(DAEMON_SET, NAME, labels.SYSTEM_NAMESPACE)).data.get("status") or {}
            return bool(status.get("numberReady"))

        await eventually(is_installed)
        yield running


@pytest_asyncio.fixture
async def space(harness: SharingHarness, gpu_node: Any) -> AsyncIterator[str]:
    """The name of a new namespace; afterwards its pods are deleted and the GPUs are free."""
    name = gpu_node.cluster.create_namespace()
    yield name
    await asyncio.to_thread(gpu_node.cluster.kubectl, "delete", "pods", "--all", "-n", name, "--timeout=120s")
    await eventually(lambda: _is_free(harness))


async def submit(harness: SharingHarness, namespace: str, name: str, **annotations: str) -> Pod:
    """Creates a job's pod. The variables and the mount stand in for NVIDIA's container toolkit."""
    container = {
        "name": "main",
        "image": JOB,
        "imagePullPolicy": "Never",
        "env": [
            {"name": "LD_LIBRARY_PATH", "value": DRIVER_PATH},
            {"name": "FAKE_CARD", "value": f"{DRIVER_PATH}/card"},
        ],
        "volumeMounts": [{"name": "driver", "mountPath": DRIVER_PATH}],
    }
    spec = {
        "schedulerName": "aliquot",
        "containers": [container],
        "volumes": [{"name": "driver", "hostPath": {"path": DRIVER_PATH}}],
        "terminationGracePeriodSeconds": 1,
    }
    metadata = {"name": name, "namespace": namespace, "annotations": annotations}
    await harness.driver.create(POD, Document({"metadata": metadata, "spec": spec}))
    return await harness.store.get(Pod, name, namespace)


async def bind(harness: SharingHarness, pod: Pod, milli: int) -> Pod:
    """Binds the pod with a fraction of the node's first GPU, and waits until it runs."""
    await harness.binder.bind(pod, "node-1", [DeviceShare(index=0, milli=milli)])
    return await wait_ready(harness, pod)


async def wait_ready(harness: SharingHarness, pod: Pod) -> Pod:
    async def is_ready() -> bool:
        current = await harness.store.get(Pod, pod.metadata.name, pod.metadata.namespace)
        return any(item.type == "Ready" and item.status == "True" for item in current.status.conditions)

    try:
        await eventually(is_ready)
    except TimeoutError:
        current = await harness.driver.get(POD, pod.metadata.name, pod.metadata.namespace)
        pytest.fail(f"not ready: {json.dumps(current.data.get('status'))}")
    return await harness.store.get(Pod, pod.metadata.name, pod.metadata.namespace)


class Container:
    """Runs commands in a pod's container."""

    def __init__(self, cluster: Any, pod: Pod) -> None:
        self._cluster, self._pod = cluster, pod

    async def run(self, *command: str) -> str:
        meta = self._pod.metadata
        arguments = ("exec", "-n", meta.namespace, meta.name, "-c", "main", "--", *command)
        return await asyncio.to_thread(self._cluster.kubectl, *arguments)


async def test_gpu_fraction(harness: SharingHarness, gpu_node: Any, space: str) -> None:
    """A job with half a GPU sees its device, library, preload and limits, and can allocate half the memory and no more.
    When it is gone its GPU is free again."""
    cluster, node = gpu_node.cluster, gpu_node.nodes[0]
    pod = await bind(harness, await submit(harness, space, "half", **{"gpu-fraction": "0.5"}), 500)
    in_pod = Container(cluster, pod)
    reservation = await harness.reservation("node-1")

    # The reservation holds the GPU that the kubelet chose, and the pod has the same one.
    [given] = node.plugin.allocations[-1]
    assert reservation.spec.node_name == "node-1"
    assert reservation.status.phase == "Running"
    assert [share.uuid for share in shares_of(reservation)] == [share.uuid for share in shares_of(pod)] == [given]

    environment = dict(line.partition("=")[::2] for line in (await in_pod.run("env")).splitlines())
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == given
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert environment["RUNAI_NUM_OF_GPUS"] == "0.5"
    assert await in_pod.run("cat", "/etc/ld.so.preload") == "/usr/local/gpushare/libgpushare.so\n"
    limit = CARD_MIB // 2
    limits = (await in_pod.run("cat", "/run/gpushare/limits")).splitlines()
    assert limits[1] == f"tenant {pod.metadata.uid}"
    assert limits[3].startswith(f"gpu {given} limit={limit << 20} ")
    assert await in_pod.run("stat", "-c", "%s %a", "/run/gpushare/ledger") == "131072 666\n"

    # The limit is enforced: half of the memory, contexts included, can be allocated, and nothing on the other GPU.
    rows = [line.split() for line in (await in_pod.run("filler")).splitlines()]
    seen = {name: (int(total), int(taken), int(code)) for name, total, taken, code in rows}
    assert seen.pop(given[:8]) == (limit, (limit - CONTEXT) // 64 * 64, 2)
    [(_, taken, code)] = seen.values()
    assert (taken, code) == (0, 2)

    # No program of the job can remove the files.
    for path in ("/run/gpushare/limits", "/run/gpushare/ledger", "/etc/ld.so.preload"):
        output = await in_pod.run("sh", "-c", f"rm -f {path} 2>&1; [ -e {path} ] && echo exists")
        assert output.endswith("exists\n")

    await harness.driver.delete(POD, "half", space)
    await eventually(lambda: harness.is_deleted(reservation))

    await eventually(lambda: _is_free(harness))
    await run_with_all_gpus(harness, space)


async def test_two_share_a_gpu(harness: SharingHarness, gpu_node: Any, space: str) -> None:
    """Two jobs on one GPU have separate limits and ledgers, and share one gate."""
    cluster = gpu_node.cluster
    strict = {"aliquot.dev/gpu-compute": "strict"}
    pods = [
        await bind(harness, await submit(harness, space, "a", **{"gpu-fraction": "0.5"}, **strict), 500),
        await bind(harness, await submit(harness, space, "b", **{"gpu-memory": "4096"}, **strict), 250),
    ]
    given = {share.uuid for pod in pods for share in shares_of(pod)}
    assert len(given) == 1
    [uuid] = given

    for pod, limit in zip(pods, (CARD_MIB // 2, 4096), strict=True):
        in_pod = Container(cluster, pod)
        assert await in_pod.run("stat", "-c", "%s %a", f"/run/gpushare/gate/{uuid}") == "16384 666\n"
        rows = [line.split() for line in (await in_pod.run("filler")).splitlines()]
        assert [row[1:] for row in rows if row[0] == uuid[:8]] == [[str(limit), str((limit - CONTEXT) // 64 * 64), "2"]]
    inodes = [(await Container(cluster, pod).run("stat", "-c", "%i", "/run/gpushare/gate/" + uuid)) for pod in pods]
    assert inodes[0] == inodes[1]


async def run_with_all_gpus(harness: SharingHarness, space: str) -> None:
    """Runs a pod with both GPUs of the node, without a scheduler."""
    container = {"name": "main", "image": JOB, "imagePullPolicy": "Never"}
    container["resources"] = {"limits": {"nvidia.com/gpu": "2"}}  # type: ignore[assignment]  # JSON
    metadata = {"name": "whole", "namespace": space}
    spec = {"nodeName": "node-1", "containers": [container], "terminationGracePeriodSeconds": 1}
    await harness.driver.create(POD, Document({"metadata": metadata, "spec": spec}))
    await wait_ready(harness, await harness.store.get(Pod, "whole", space))


async def _is_free(harness: SharingHarness) -> bool:
    return not (await harness.driver.list(POD, labels.RESERVATION_NAMESPACE)).items


async def test_refused_by_the_kubelet(harness: SharingHarness, gpu_node: Any, space: str) -> None:
    """If another pod got the GPU first, the node refuses the reservation and the pod is not bound."""
    await run_with_all_gpus(harness, space)
    pod = await submit(harness, space, "half", **{"gpu-fraction": "0.5"})
    with pytest.raises((Unavailable, Conflict), match="GPU 0 of node node-1 is not free"):
        await harness.binder.bind(pod, "node-1", [DeviceShare(index=0, milli=500)])

    assert not (await harness.store.get(Pod, "half", space)).spec.node_name
    assert (await harness.store.get(Pod, "whole", space)).status.phase == "Running"


def test_submitted(gpu_node: Any, native_build: Path, tmp_path: Path) -> None:
    """A job that a researcher submits with half a GPU runs, sees half the memory, and cannot allocate more."""
    cluster, node = gpu_node.cluster, gpu_node.nodes[0]
    library = node.folder / "var/lib/aliquot/gpushare/libgpushare.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(native_build / "plain" / "libgpushare.so", library)
    hook = f"https://{gpu_node.network.host}:{free_port()}"
    platform = Platform(
        Path(sys.executable).parent, tmp_path / "platform", "--kubeconfig", str(cluster.kubeconfig),
        "--webhook-url", hook, "--image", "busybox:latest", "--no-node-files", verb="serve",
    ).up()  # fmt: skip
    try:
        platform.sh("aliquot project create team --gpu 2")
        platform.sh(f"runai submit half -p team -g 0.5 -i {WITH_DRIVER}")
        platform.wait_for_phase("half", "team", "Running")
        rows = [line.split() for line in platform.sh("runai exec half -p team filler").out.splitlines()]
        assert [row[1:] for row in rows if row[2] != "0"] == [["8192", str((8192 - CONTEXT) // 64 * 64), "2"]]
        [reservation] = json.loads(cluster.kubectl("get", "pods", "-n", labels.RESERVATION_NAMESPACE, "-o", "json"))[
            "items"
        ]
        assert reservation["status"]["phase"] == "Running"

        platform.sh("runai delete half -p team")
        arguments = (
            "wait",
            "-n",
            labels.RESERVATION_NAMESPACE,
            "--for=delete",
            f"pod/{reservation['metadata']['name']}",
        )
        cluster.kubectl(*arguments, "--timeout=120s")
    finally:
        platform.server.stop()
        cluster.kubectl("delete", "mutatingwebhookconfiguration", "aliquot", "--ignore-not-found")
