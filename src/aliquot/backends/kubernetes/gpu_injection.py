"""GPU injection on Kubernetes: the volumes, mounts, variables and init container that enforce a pod's GPU fraction.

`gpu.injection.build_injection` decides what a pod is given; this module expresses it as a pod spec. It has two halves,
because the webhook sees a pod before the scheduler chooses its GPU:

    inject             (pod, name of its ConfigMap) -> the pod, with references to the ConfigMap
    config_map_data    (GPU allocations) -> the variables and files that the binder writes there before it binds

    files with a text       keys of the ConfigMap, each mounted as one file
    files of the node       a hostPath of type File: without the library on its node a pod does not start
    the ledger              an emptyDir in memory: it survives the restart of a container and is deleted with the pod;
                            mounted as one file, so that no program in the pod can remove it
    gates                   a folder of the node, shared by the pods of one GPU
    files of zero bytes     created by an unprivileged init container that runs before all others

All containers of the pod get all of it, init containers included: they share one fraction and one ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from aliquot.api import Json
from aliquot.backends.kubernetes.fraction_request import FractionRequest
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import Fault, Invalid
from aliquot.gpu.fractions import Enforcement, GpuAllocation
from aliquot.gpu.injection import GATES, HostPaths, Injection, Mount, build_injection
from aliquot.units import GPU

NAME_PREFIX = "aliquot-gpu-"  # of every name that is added to a pod
INIT_CONTAINER = NAME_PREFIX + "files"
CONFIG_VOLUME, LIBRARY_VOLUME, LEDGER_VOLUME, GATES_VOLUME = (
    NAME_PREFIX + name for name in ("config", "library", "ledger", "gates")
)
FILES_KEY = "made"  # the ConfigMap's key for the files to create: size and path, one per line
# Where the init container mounts the ledger's and the gates' volumes. These are the "host paths" of a cluster's pods.
_POD_DIR, _GATES_DIR = "/made/pod", "/made/gates"
_FILES_LIST = "/made/list"
# Enforcement depends on these variables; for all others a pod's own value wins.
_ENFORCED_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
# A file gets its name only once it is complete, because two pods may create the same file at once.
_SCRIPT = f"""set -eu
while read -r size path; do
  [ -e "$path" ] && continue
  fresh=$(mktemp "${{path%/*}}/.new.XXXXXX")
  head -c "$size" /dev/zero > "$fresh"
  chmod 0666 "$fresh"
  ln "$fresh" "$path" 2>/dev/null || [ -e "$path" ]
  rm -f "$fresh"
done < {_FILES_LIST}
"""
_NOBODY = 65534


def config_map_name(namespace: str, pod: str) -> str:
    """The ConfigMap of a pod with a known name; a later pod of the same name uses the same ConfigMap name."""
    return NAME_PREFIX + hashlib.sha256(f"{namespace}/{pod}".encode()).hexdigest()[:16]


def is_config_map_name(name: str) -> bool:
    rest = name.removeprefix(NAME_PREFIX)
    return name.startswith(NAME_PREFIX) and rest.isalnum() and rest.isascii() and rest == rest.lower()


def config_map_data(allocations: Sequence[GpuAllocation], settings: GpuSharingSettings) -> dict[str, str]:
    """The ConfigMap's data for a pod with these allocations."""
    injection = _injection(allocations, settings)
    files = "".join(f"{mount.create_bytes} {mount.source}\n" for mount in injection.mounts if mount.create_bytes)
    return {**injection.environment, **{_file_name(file.path): file.text for file in injection.files}, FILES_KEY: files}


def inject(pod: Json, request: FractionRequest, config_map: str, settings: GpuSharingSettings) -> Json:
    """The pod with the injection; idempotent. `Invalid` if a mount of the pod's own is in the way."""
    injection = _injection(_placeholders(request), settings)
    spec = dict(pod["spec"])
    mounts = list(_mounts(injection))
    faults = list(_mount_conflicts(spec, {mount["mountPath"] for mount in mounts}))
    if faults:
        raise Invalid.because("pod", faults)
    for field in ("initContainers", "containers"):
        own = [container for container in spec.get(field) or () if container.get("name") != INIT_CONTAINER]
        spec[field] = [_with_injection(container, injection, mounts, config_map) for container in own]
    spec["initContainers"] = [_init_container(injection, settings), *spec["initContainers"]]
    own_volumes = [volume for volume in spec.get("volumes") or () if not _is_injected(volume)]
    spec["volumes"] = [*own_volumes, *_volumes(injection, config_map, settings)]
    if settings.runtime_class:
        spec.setdefault("runtimeClassName", settings.runtime_class)
    return {**pod, "spec": spec}


def _injection(allocations: Sequence[GpuAllocation], settings: GpuSharingSettings) -> Injection:
    host = HostPaths(settings.library, _POD_DIR, _GATES_DIR)
    return build_injection(list(map(_enforced, allocations)), Enforcement.SHIM, host)


def _enforced(allocation: GpuAllocation) -> GpuAllocation:
    """The allocation as it is enforced on a cluster.

    A request for memory may cover a whole GPU; the GPU is reserved and the limit enforced all the same. No pod may
    borrow beyond its guarantee, because nothing on a cluster reclaims borrowed memory.
    """
    return replace(allocation, milli=min(allocation.milli, GPU - 1), limit_mib=allocation.guaranteed_mib)


def _placeholders(request: FractionRequest) -> list[GpuAllocation]:
    """Allocations on GPUs that are not chosen yet; what is mounted does not depend on the choice."""
    return [
        GpuAllocation(index=index, uuid=str(index), model="", milli=1, guaranteed_mib=0, limit_mib=0, mode=request.mode)
        for index in range(request.devices)
    ]


def _file_name(path: str) -> str:
    return PurePosixPath(path).name


# ---------------------------------------------------------------- volumes and mounts


def _is_gate(mount: Mount) -> bool:
    return mount.path.startswith(GATES + "/")


def _mounts(injection: Injection) -> Iterator[Json]:
    for file in injection.files:
        yield {"name": CONFIG_VOLUME, "mountPath": file.path, "subPath": _file_name(file.path), "readOnly": True}
    for mount in injection.mounts:
        if _is_gate(mount):
            continue
        if mount.create_bytes:
            yield {"name": LEDGER_VOLUME, "mountPath": mount.path, "subPath": _file_name(mount.path)}
        else:
            yield {"name": LIBRARY_VOLUME, "mountPath": mount.path, "readOnly": True}
    if any(map(_is_gate, injection.mounts)):
        # The whole folder: gates are named after GPUs, which are not chosen yet.
        yield {"name": GATES_VOLUME, "mountPath": GATES}


def _volumes(injection: Injection, config_map: str, settings: GpuSharingSettings) -> Iterator[Json]:
    yield {"name": CONFIG_VOLUME, "configMap": {"name": config_map, "defaultMode": 0o444}}
    yield {"name": LIBRARY_VOLUME, "hostPath": {"path": settings.library, "type": "File"}}
    yield {"name": LEDGER_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    if any(map(_is_gate, injection.mounts)):
        yield {"name": GATES_VOLUME, "hostPath": {"path": settings.gate_folder, "type": "Directory"}}


def _is_injected(volume: Json) -> bool:
    """Whether a volume, or the volume of a mount, is part of the injection."""
    return str(volume.get("name")) in (CONFIG_VOLUME, LIBRARY_VOLUME, LEDGER_VOLUME, GATES_VOLUME)


def _mount_conflicts(spec: Json, injected_paths: set[str]) -> Iterator[Fault]:
    """The pod's own mounts at paths that the injection needs."""
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            for index, mount in enumerate(container.get("volumeMounts") or ()):
                path = str(PurePosixPath(str(mount.get("mountPath"))))
                if path in injected_paths and not _is_injected(mount):
                    yield Fault(
                        f"spec.{field}[{number}].volumeMounts[{index}].mountPath",
                        f"must not be {path}: the limit on the GPU fraction needs this path",
                    )


# ---------------------------------------------------------------- containers


def _with_injection(container: Json, injection: Injection, mounts: Sequence[Json], config_map: str) -> Json:
    own_mounts = [mount for mount in container.get("volumeMounts") or () if not _is_injected(mount)]
    return {
        **container,
        "env": list(_variables(container.get("env") or (), injection, config_map)),
        "volumeMounts": [*own_mounts, *mounts],
    }


def _variables(own: Iterable[Json], injection: Injection, config_map: str) -> Iterator[Json]:
    """The injected variables come first, so that the pod's own may refer to them."""
    kept = [
        variable
        for variable in own
        if variable.get("name") not in _ENFORCED_VARIABLES and not _refers_to_config_map(variable)
    ]
    kept_names = {variable.get("name") for variable in kept}
    for name in injection.environment:
        if name not in kept_names:
            yield {"name": name, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": name}}}
    yield from kept


def _refers_to_config_map(variable: Json) -> bool:
    """Whether an earlier injection added the variable."""
    source: Any = (variable.get("valueFrom") or {}).get("configMapKeyRef") or {}
    return is_config_map_name(str(source.get("name") or ""))


def _init_container(injection: Injection, settings: GpuSharingSettings) -> Json:
    """Creates the files of zero bytes. Runs before all others, as nobody, without capabilities and without a GPU."""
    mounts: list[Json] = [
        {"name": CONFIG_VOLUME, "mountPath": _FILES_LIST, "subPath": FILES_KEY, "readOnly": True},
        {"name": LEDGER_VOLUME, "mountPath": _POD_DIR},
    ]
    if any(map(_is_gate, injection.mounts)):
        mounts.append({"name": GATES_VOLUME, "mountPath": _GATES_DIR})
    resources = {"cpu": "100m", "memory": "32Mi"}
    return {
        "name": INIT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/bin/sh", "-c", _SCRIPT],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "volumeMounts": mounts,
        # Requests equal limits, so that a pod of QoS class Guaranteed stays in that class.
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
