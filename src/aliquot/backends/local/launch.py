"""From a pod to what is started: program, folder, environment, mounts and limits.

What cannot be had here is refused before anything runs, in a sentence that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aliquot import labels, units
from aliquot.api import Container, Pod, shares_of
from aliquot.api.pod import EnvVar
from aliquot.backends.local.devices.node_devices import Devices
from aliquot.backends.local.image_catalogue import ResolvedCommand
from aliquot.backends.local.runtime import CannotStart, Launch, PodAssignment, Volume
from aliquot.errors import Invalid
from aliquot.gpu.fractions import SharingOptions, sharing_options

_REFERENCE = re.compile(r"\$\$(?=\()|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_UID = re.compile(r"[0-9a-f-]{36}")  # becomes the name of a folder
_FIELD = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class ImageResolver(Protocol):
    def resolve(self, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> ResolvedCommand: ...


def assignment_of(pod: Pod) -> PodAssignment:
    """`Invalid` when its devices cannot be read."""
    return PodAssignment(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        shares=shares_of(pod),
        policy=pod.spec.restart_policy or "Always",
        workload=_workload(pod),
    )


def _workload(pod: Pod) -> str:
    owners = (owner.uid for owner in pod.metadata.owners if owner.kind == "Workload" and _UID.fullmatch(owner.uid))
    return next(owners, "")


def rejection_of(pod: Pod, assignment: PodAssignment) -> str:
    """Why a pod cannot be accepted, whatever is free: it asks for GPUs that nobody gave it."""
    asked = sum(_whole_gpus(container) for container in pod.spec.containers)
    marks = pod.metadata.annotations
    if asked and sum(share.milli for share in assignment.shares) < asked * units.GPU:
        return f"it asks for {asked} GPUs and was given {len(assignment.shares)}"
    partial = any(name in marks for name in (labels.GPU_FRACTION, labels.GPU_MEMORY_MIB))
    if partial and not assignment.shares:
        return "it asks for a part of a GPU and was given none"
    return ""


def launch_of(pod: Pod, assignment: PodAssignment, attempt: int, devices: Devices, images: ImageResolver) -> Launch:
    """How the pod's main container starts; `CannotStart` says why it cannot."""
    if not pod.spec.containers:
        raise CannotStart("CreateContainerConfigError", "the pod has no container")
    if pod.spec.init_containers or len(pod.spec.containers) > 1:
        raise CannotStart("CreateContainerConfigError", "without a container engine a pod has one container")
    container = pod.spec.containers[0]
    env = _environment(pod, container)
    resolved = _resolved(container, env, images)
    injection = devices.injection(assignment.node, assignment.shares, _wish(pod), assignment.uid)
    env = {**resolved.env, **env, **injection.environment}
    limits, requests = container.resources.limits, container.resources.requests
    return Launch(
        assignment=assignment,
        attempt=attempt,
        argv=resolved.argv,
        cwd=container.working_dir or resolved.cwd,
        env=env,
        volumes=_volumes(pod, container),
        memory=_amount("memory limit", limits.get("memory"), units.quantity),
        cpu=_amount("cpu limit", limits.get("cpu"), units.milli),
        cpu_weight=_amount("cpu request", requests.get("cpu"), units.milli),
        injection=injection,
        host_ipc=pod.spec.host_ipc,
    )


def _wish(pod: Pod) -> SharingOptions:
    try:
        return sharing_options(pod.metadata.annotations)
    except Invalid as exc:
        raise CannotStart("CreateContainerConfigError", str(exc)) from exc


def _whole_gpus(container: Container) -> int:
    try:
        return int(container.resources.limits.get(labels.GPU_RESOURCE, "0"))
    except ValueError:
        return 0


def _amount(what: str, text: str | None, read: Any) -> int | None:
    try:
        return None if text is None else int(read(text))
    except ValueError as exc:
        raise CannotStart("CreateContainerConfigError", f"{what}: {exc}") from exc


def _resolved(container: Container, env: Mapping[str, str], images: ImageResolver) -> ResolvedCommand:
    command = [expand(word, env) for word in container.command]
    args = [expand(word, env) for word in container.args]
    try:
        return images.resolve(container.image, command, args)
    except Invalid as exc:
        raise CannotStart("ErrImagePull", str(exc)) from exc


def expand(text: str, env: Mapping[str, str]) -> str:
    """$(NAME) as Kubernetes reads it: a variable's value, unchanged when there is none; $$(NAME) is not read.

    Only before a bracket: Kubernetes makes one dollar of every two, which breaks each script that says $$.
    """
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


def _environment(pod: Pod, container: Container) -> dict[str, str]:
    if container.env_from:
        raise CannotStart("CreateContainerConfigError", "envFrom is not available without Kubernetes")
    env: dict[str, str] = {}
    for variable in container.env:
        if not variable.name or "=" in variable.name or "\0" in variable.name + variable.value:
            raise CannotStart("CreateContainerConfigError", f"not an environment variable: {variable.name!r}")
        env[variable.name] = expand(variable.value, env) if variable.value_from is None else _read(pod, variable)
    return env


def _read(pod: Pod, variable: EnvVar) -> str:
    path = str(((variable.value_from or {}).get("fieldRef") or {}).get("fieldPath") or "")
    metadata = pod.metadata
    known = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }
    if path in known:
        return known[path]
    if mark := _FIELD.match(path):
        return (metadata.labels if mark[1] == "labels" else metadata.annotations).get(mark[2], "")
    source = path or ", ".join(variable.value_from or {}) or "nothing"
    raise CannotStart(
        "CreateContainerConfigError", f"variable {variable.name}: its source ({source}) is not available here"
    )


def _volumes(pod: Pod, container: Container) -> tuple[Volume, ...]:
    sources = {str(volume.get("name")): volume for volume in pod.spec.volumes}
    mounts = []
    for mount in container.volume_mounts:
        source = sources.get(mount.name)
        if source is None:
            raise CannotStart("CreateContainerConfigError", f"volume {mount.name!r} is not described")
        if mount.sub_path or mount.sub_path_expr:
            raise CannotStart("FailedMount", f"volume {mount.name!r}: subPath needs a container engine or Kubernetes")
        mounts.append(_source(mount.name, source, mount.mount_path, mount.read_only))
    # Parents first, so that what is mounted inside another mount is seen.
    return tuple(sorted(mounts, key=lambda volume: volume.mount_path.count("/")))


# What only a cluster has: the word for it, and the field that names it.
_OF_CLUSTERS = {
    "persistentVolumeClaim": ("volume claim", "claimName"),
    "nfs": ("NFS folder", "path"),
    "configMap": ("ConfigMap", "name"),
    "secret": ("Secret", "secretName"),
}


def _source(name: str, source: Mapping[str, Any], place: str, read_only: bool) -> Volume:
    # The store takes free JSON here, so nothing is taken for granted.
    if isinstance(path := (source.get("hostPath") or {}).get("path"), str):
        return Volume("host", place, source=path, read_only=read_only)
    empty = source.get("emptyDir")
    if isinstance(empty, Mapping):
        if empty.get("medium") == "Memory":
            return Volume("memory", place, size=_amount(f"volume {name}", empty.get("sizeLimit"), units.quantity))
        if re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
            return Volume("folder", place, name=name, read_only=read_only)
    kind = next((key for key in source if key != "name"), "nothing")
    if kind in _OF_CLUSTERS and isinstance(source[kind], Mapping):
        word, key = _OF_CLUSTERS[kind]
        said = f"{word} {source[kind].get(key)} cannot be mounted at {place}: there is no Kubernetes here"
        raise CannotStart("FailedMount", f"{said}; mount a folder of this machine instead (-v)")
    raise CannotStart("FailedMount", f"volume {name!r}: {kind} is not available without a container engine")
