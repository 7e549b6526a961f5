"""What a workload mounts, in Kubernetes' own shape. Who runs the pod has the last word: without a container engine only
folders of the machine and memory can be mounted, and a job that asks for more is told so."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.api import Json, Workload
from aliquot.api.pod import VolumeMount
from aliquot.api.storage import ClaimMount, FilesOf

Mounted = tuple[Json, VolumeMount]


def mounts_of(workload: Workload) -> list[Mounted]:
    """Each volume, and where the job sees it."""
    return [*_folders(workload), *_servers(workload), *_claims(workload), *_files(workload), *_memory(workload)]


def claim_name(workload: Workload, index: int, claim: ClaimMount) -> str:
    """Of a claim that exists as it is called; of a new one that has no name, after its workload."""
    return claim.claim_name or f"{workload.metadata.name}-pvc-{index}"


def _folders(workload: Workload) -> Iterator[Mounted]:
    storage = workload.spec.storage
    for index, host in enumerate(storage.host_path):
        name = f"host-{index}"
        mount = VolumeMount(
            name=name,
            mount_path=host.mount_path,
            read_only=bool(host.read_only),
            mount_propagation=host.mount_propagation or storage.mount_propagation,
        )
        yield {"name": name, "hostPath": {"path": host.path}}, mount


def _servers(workload: Workload) -> Iterator[Mounted]:
    for index, nfs in enumerate(workload.spec.storage.nfs):
        name, read_only = f"nfs-{index}", bool(nfs.read_only)
        source = {"server": nfs.server, "path": nfs.path, "readOnly": read_only}
        yield {"name": name, "nfs": source}, VolumeMount(name=name, mount_path=nfs.mount_path, read_only=read_only)


def _claims(workload: Workload) -> Iterator[Mounted]:
    for index, claim in enumerate(workload.spec.storage.pvc):
        name = f"pvc-{index}"
        source = {"claimName": claim_name(workload, index, claim)}
        mount = VolumeMount(name=name, mount_path=claim.path, read_only=bool(claim.read_only))
        yield {"name": name, "persistentVolumeClaim": source}, mount


def _files(workload: Workload) -> Iterator[Mounted]:
    storage = workload.spec.storage
    for index, one in enumerate(storage.config_map):
        name = f"config-{index}"
        yield {"name": name, "configMap": {"name": one.source, **_mode(one)}}, _file_mount(name, one)
    for index, one in enumerate(storage.secret):
        name = f"secret-{index}"
        yield {"name": name, "secret": {"secretName": one.source, **_mode(one)}}, _file_mount(name, one)


def _mode(one: FilesOf) -> Json:
    return {} if one.default_mode is None else {"defaultMode": one.default_mode}


def _file_mount(name: str, one: FilesOf) -> VolumeMount:
    return VolumeMount(name=name, mount_path=one.path, sub_path=one.sub_path, read_only=True)


def _memory(workload: Workload) -> Iterator[Mounted]:
    if workload.spec.compute.large_shm:
        mount = VolumeMount(name="shm", mount_path="/dev/shm")  # noqa: S108  # inside the pod
        yield {"name": "shm", "emptyDir": {"medium": "Memory"}}, mount
