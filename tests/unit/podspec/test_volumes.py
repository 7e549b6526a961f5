"""Host folders and shared memory of a workload are volumes of its pod."""

from __future__ import annotations

from dataclasses import replace

from aliquot.api import Pod
from aliquot.api.compute import Compute
from aliquot.api.security import Security
from aliquot.api.storage import HostPath, Storage
from aliquot.api.workload import WorkloadSpec
from aliquot.podspec.builder import build_pod
from support.objects import workload


def built_pod(spec: WorkloadSpec) -> Pod:
    return build_pod(replace(workload(), spec=spec), "a")


def test_host_paths_are_mounted() -> None:
    """Each host path of a workload is a volume of its pod, read-only where it says so."""
    paths = (HostPath(path="/data", mount_path="/in", read_only=True), HostPath(path="/scratch", mount_path="/out"))

    spec = built_pod(WorkloadSpec(storage=Storage(host_path=paths))).spec

    assert [volume["hostPath"] for volume in spec.volumes] == [{"path": "/data"}, {"path": "/scratch"}]
    mounts = spec.containers[0].volume_mounts
    assert [(mount.mount_path, mount.read_only) for mount in mounts] == [("/in", True), ("/out", False)]
    assert [volume["name"] for volume in spec.volumes] == [mount.name for mount in mounts]


def test_large_shared_memory() -> None:
    """A job that asks for a large /dev/shm gets one that is backed by memory."""
    spec = built_pod(WorkloadSpec(compute=Compute(large_shm=True))).spec

    assert spec.volumes == ({"name": "shm", "emptyDir": {"medium": "Memory"}},)
    assert [mount.mount_path for mount in spec.containers[0].volume_mounts] == ["/dev/shm"]


def test_host_ipc() -> None:
    """Only a job that asks for it uses the host's IPC namespace."""
    assert built_pod(WorkloadSpec(security=Security(host_ipc=True))).spec.host_ipc
    assert not built_pod(WorkloadSpec()).spec.host_ipc
