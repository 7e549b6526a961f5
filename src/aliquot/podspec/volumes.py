"""The volumes and mounts of a workload's pod, as Kubernetes spells them.

Not every backend can mount all of them. Without a container engine only host folders and memory can be mounted, and the
backend refuses a pod that asks for more.
"""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.api import Json, Workload
from aliquot.api.pod import VolumeMount
from aliquot.api.storage import ClaimMount, FilesOf

Mounted = tuple[Json, VolumeMount]  # the volume, and where the container sees it


def mounts_of(workload: Workload) -> list[Mounted]:
    return [*_host_paths(workload), *_nfs(workload), *_claims(workload), *_files(workload), *_shared_memory(workload)]


def claim_name(workload: Workload, index: int, claim: ClaimMount) -> str:
    """The name that the workload gives, or one made from the workload's name for a new claim."""
    return claim.claim_name or f"{workload.metadata.name}-pvc-{index}"


def _host_paths(workload: Workload) -> Iterator[Mounted]:
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


def _nfs(workload: Workload) -> Iterator[Mounted]:
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
    for index, files in enumerate(storage.config_map):
        name = f"config-{index}"
        yield {"name": name, "configMap": {"name": files.source, **_mode(files)}}, _file_mount(name, files)
    for index, files in enumerate(storage.secret):
        name = f"secret-{index}"
        yield {"name": name, "secret": {"secretName": files.source, **_mode(files)}}, _file_mount(name, files)


def _mode(files: FilesOf) -> Json:
    return {} if files.default_mode is None else {"defaultMode": files.default_mode}


def _file_mount(name: str, files: FilesOf) -> VolumeMount:
    return VolumeMount(name=name, mount_path=files.path, sub_path=files.sub_path, read_only=True)


def _shared_memory(workload: Workload) -> Iterator[Mounted]:
    if workload.spec.compute.large_shm:
        mount = VolumeMount(name="shm", mount_path="/dev/shm")  # noqa: S108  # inside the pod
        yield {"name": "shm", "emptyDir": {"medium": "Memory"}}, mount
