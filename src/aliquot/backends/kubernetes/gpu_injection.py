"""The fence around a part of a GPU as Kubernetes has it: volumes, mounts, variables, and a step before all others.

What a pod is given is said once, by `gpu.injection.build_injection`. Here a cluster carries it out, in two halves,
because the webhook sees a pod before anybody knows its GPU:

    fenced         (pod, name of its ConfigMap) -> the pod with everything that refers to the ConfigMap
    config_map_data    (slices) -> what the binder writes there before it binds: variables and files, by name

    a file with a text      the ConfigMap, mounted as this one file
    a file of the node      a hostPath of type File: without the library on its node a pod does not start
    the ledger              a volume in memory that is the pod's own: it outlives a restart of a container and goes with
                            the pod. Mounted as one file, which no program in the pod can remove
    gates                   a folder of the node, because pods on one GPU share them
    files of zeros          made by an init container, without rights of any kind, before all other containers

Every container of the pod has all of it, also init containers: they share one part and one ledger.
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

NAME_PREFIX = "aliquot-gpu-"  # of all names that we add to a pod
INIT_CONTAINER = NAME_PREFIX + "files"
CONFIG, LIBRARY, LEDGER, GATE = (NAME_PREFIX + name for name in ("config", "library", "ledger", "gates"))
FILES_KEY = "made"  # key of the list of files to make: bytes and path, one a line
# Where that step sees the two volumes, and so what a Host's folders are on a cluster.
_OWN, _SHARED = "/made/pod", "/made/gates"
_TASK = "/made/list"
# Variables that a fence needs; the others are a help, and a pod's own value for them stays.
_OURS = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
# A file is complete before it has its name, also when two pods make the same one.
_SCRIPT = f"""set -eu
while read -r size path; do
  [ -e "$path" ] && continue
  fresh=$(mktemp "${{path%/*}}/.new.XXXXXX")
  head -c "$size" /dev/zero > "$fresh"
  chmod 0666 "$fresh"
  ln "$fresh" "$path" 2>/dev/null || [ -e "$path" ]
  rm -f "$fresh"
done < {_TASK}
"""
_NOBODY = 65534


def config_map_name(namespace: str, pod: str) -> str:
    """Of a pod that has a name already: its successor of the same name has the same one."""
    return NAME_PREFIX + hashlib.sha256(f"{namespace}/{pod}".encode()).hexdigest()[:16]


def is_config_map_name(name: str) -> bool:
    rest = name.removeprefix(NAME_PREFIX)
    return name.startswith(NAME_PREFIX) and rest.isalnum() and rest.isascii() and rest == rest.lower()


def config_map_data(slices: Sequence[GpuAllocation], settings: GpuSharingSettings) -> dict[str, str]:
    """What the ConfigMap of a pod with these slices holds."""
    gift = _gift(slices, settings)
    made = "".join(f"{mount.create_bytes} {mount.source}\n" for mount in gift.mounts if mount.create_bytes)
    return {**gift.environment, **{_key(file.path): file.text for file in gift.files}, FILES_KEY: made}


def inject(pod: Json, part: FractionRequest, config: str, settings: GpuSharingSettings) -> Json:
    """The pod with its fence. A pod that has it already stays as it is; `Invalid` where something is in the way."""
    gift = _gift(_unknown(part), settings)
    spec = dict(pod["spec"])
    mounts = list(_mounts(gift))
    faults = [*_taken(spec, {mount["mountPath"] for mount in mounts})]
    if faults:
        raise Invalid.because("pod", faults)
    for field in ("initContainers", "containers"):
        others = [one for one in spec.get(field) or () if one.get("name") != INIT_CONTAINER]
        spec[field] = [_given(one, gift, mounts, config) for one in others]
    spec["initContainers"] = [_step(gift, settings), *spec["initContainers"]]
    ours = list(_volumes(gift, config, settings))
    spec["volumes"] = [*(one for one in spec.get("volumes") or () if not _is_ours(one)), *ours]
    if settings.runtime_class:
        spec.setdefault("runtimeClassName", settings.runtime_class)
    return {**pod, "spec": spec}


def _gift(slices: Sequence[GpuAllocation], settings: GpuSharingSettings) -> Injection:
    host = HostPaths(settings.library, _OWN, _SHARED)
    return build_injection([_shared(one) for one in slices], Enforcement.SHIM, host)


def _shared(one: GpuAllocation) -> GpuAllocation:
    """An amount of memory may be all that a GPU has; it is held by a reservation all the same, and fenced.

    Nobody on a cluster takes back what was lent, so nobody is lent anything.
    """
    return replace(one, milli=min(one.milli, GPU - 1), limit_mib=one.guaranteed_mib)


def _unknown(part: FractionRequest) -> list[GpuAllocation]:
    """Slices of GPUs that are not chosen yet: what is mounted does not depend on which they are."""
    return [
        GpuAllocation(index=index, uuid=str(index), model="", milli=1, guaranteed_mib=0, limit_mib=0, mode=part.mode)
        for index in range(part.devices)
    ]


def _key(place: str) -> str:
    return PurePosixPath(place).name


# ---------------------------------------------------------------- volumes and mounts


def _is_gate(mount: Mount) -> bool:
    return mount.path.startswith(GATES + "/")


def _mounts(gift: Injection) -> Iterator[Json]:
    for file in gift.files:
        yield {"name": CONFIG, "mountPath": file.path, "subPath": _key(file.path), "readOnly": True}
    for mount in gift.mounts:
        if _is_gate(mount):
            continue
        if mount.create_bytes:
            yield {"name": LEDGER, "mountPath": mount.path, "subPath": _key(mount.path)}
        else:
            yield {"name": LIBRARY, "mountPath": mount.path, "readOnly": True}
    if any(map(_is_gate, gift.mounts)):
        # Their names are those of GPUs, which are not known yet.
        yield {"name": GATE, "mountPath": GATES}


def _volumes(gift: Injection, config: str, settings: GpuSharingSettings) -> Iterator[Json]:
    yield {"name": CONFIG, "configMap": {"name": config, "defaultMode": 0o444}}
    yield {"name": LIBRARY, "hostPath": {"path": settings.library, "type": "File"}}
    yield {"name": LEDGER, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    if any(map(_is_gate, gift.mounts)):
        yield {"name": GATE, "hostPath": {"path": settings.gate_folder, "type": "Directory"}}


def _is_ours(volume: Json) -> bool:
    return str(volume.get("name")) in (CONFIG, LIBRARY, LEDGER, GATE)


def _taken(spec: Json, places: set[str]) -> Iterator[Fault]:
    """Mounts of the pod's own where ours must be."""
    for field in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(field) or ()):
            for at, mount in enumerate(container.get("volumeMounts") or ()):
                place = str(PurePosixPath(str(mount.get("mountPath"))))
                if place in places and not _is_ours(mount):
                    path = f"spec.{field}[{number}].volumeMounts[{at}].mountPath"
                    yield Fault(path, f"must not be {place}: the fence around a part of a GPU is there")


# ---------------------------------------------------------------- containers


def _given(container: Json, gift: Injection, mounts: Sequence[Json], config: str) -> Json:
    own = [one for one in container.get("volumeMounts") or () if not _is_ours(one)]
    return {
        **container,
        "env": list(_variables(container.get("env") or (), gift, config)),
        "volumeMounts": [*own, *mounts],
    }


def _variables(own: Iterable[Json], gift: Injection, config: str) -> Iterator[Json]:
    """Ours first, so that the pod's own may refer to them."""
    kept = [one for one in own if one.get("name") not in _OURS and not _refers(one)]
    there = {one.get("name") for one in kept}
    for name in gift.environment:
        if name not in there:
            yield {"name": name, "valueFrom": {"configMapKeyRef": {"name": config, "key": name}}}
    yield from kept


def _refers(variable: Json) -> bool:
    """Whether it is one that we gave before."""
    source: Any = (variable.get("valueFrom") or {}).get("configMapKeyRef") or {}
    return is_config_map_name(str(source.get("name") or ""))


def _step(gift: Injection, settings: GpuSharingSettings) -> Json:
    """Makes the files of zeros. The first of all containers, and the least of them: no user, no rights, no GPU."""
    mounts: list[Json] = [
        {"name": CONFIG, "mountPath": _TASK, "subPath": FILES_KEY, "readOnly": True},
        {"name": LEDGER, "mountPath": _OWN},
    ]
    if any(map(_is_gate, gift.mounts)):
        mounts.append({"name": GATE, "mountPath": _SHARED})
    room = {"cpu": "100m", "memory": "32Mi"}
    return {
        "name": INIT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/bin/sh", "-c", _SCRIPT],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "volumeMounts": mounts,
        # Both, so that a pod whose own containers are guaranteed theirs stays one of those.
        "resources": {"requests": room, "limits": room},
        "securityContext": {
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
