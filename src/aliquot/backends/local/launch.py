"""Turns a pod into a `Launch`: program, folder, environment, volumes and limits.

What is not available on this machine is refused before anything runs, with a message that names it.
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
_METADATA_FIELD = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class ImageResolver(Protocol):
    def resolve(self, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> ResolvedCommand: ...


def assignment_of(pod: Pod) -> PodAssignment:
    """`Invalid` when the annotation with its devices cannot be parsed."""
    return PodAssignment(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        shares=shares_of(pod),
        policy=pod.spec.restart_policy or "Always",
        workload=_workload_uid(pod),
    )


def _workload_uid(pod: Pod) -> str:
    owners = (owner.uid for owner in pod.metadata.owners if owner.kind == "Workload" and _UID.fullmatch(owner.uid))
    return next(owners, "")


def rejection_of(pod: Pod, assignment: PodAssignment) -> str:
    """Why a pod cannot be accepted whatever is free: it asks for GPUs and the scheduler gave it none. Empty: it can."""
    requested = sum(_whole_gpus(container) for container in pod.spec.containers)
    annotations = pod.metadata.annotations
    if requested and sum(share.milli for share in assignment.shares) < requested * units.GPU:
        return f"it asks for {requested} GPUs and was given {len(assignment.shares)}"
    is_fraction = any(name in annotations for name in (labels.GPU_FRACTION, labels.GPU_MEMORY_MIB))
    if is_fraction and not assignment.shares:
        return "it asks for a GPU fraction and was given none"
    return ""


def launch_of(pod: Pod, assignment: PodAssignment, attempt: int, devices: Devices, images: ImageResolver) -> Launch:
    """How the pod's main container starts; `CannotStart` says why it cannot."""
    if not pod.spec.containers:
        raise CannotStart("CreateContainerConfigError", "the pod has no container")
    if pod.spec.init_containers or len(pod.spec.containers) > 1:
        raise CannotStart("CreateContainerConfigError", "without a container engine a pod has one container")
    container = pod.spec.containers[0]
    env = _environment(pod, container)
    resolved = _resolve(container, env, images)
    injection = devices.injection(assignment.node, assignment.shares, _options(pod), assignment.uid)
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


def _options(pod: Pod) -> SharingOptions:
    try:
        return sharing_options(pod.metadata.annotations)
    except Invalid as exc:
        raise CannotStart("CreateContainerConfigError", str(exc)) from exc


def _whole_gpus(container: Container) -> int:
    try:
        return int(container.resources.limits.get(labels.GPU_RESOURCE, "0"))
    except ValueError:
        return 0


def _amount(name: str, text: str | None, parse: Any) -> int | None:
    try:
        return None if text is None else int(parse(text))
    except ValueError as exc:
        raise CannotStart("CreateContainerConfigError", f"{name}: {exc}") from exc


def _resolve(container: Container, env: Mapping[str, str], images: ImageResolver) -> ResolvedCommand:
    command = [expand(word, env) for word in container.command]
    args = [expand(word, env) for word in container.args]
    try:
        return images.resolve(container.image, command, args)
    except Invalid as exc:
        raise CannotStart("ErrImagePull", str(exc)) from exc


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand $(NAME) as Kubernetes does: to the variable's value, or unchanged when there is none. $$(NAME) is literal.

    $$ is special only before a bracket: Kubernetes turns every $$ into $, which breaks scripts that use $$.
    """
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)


def _environment(pod: Pod, container: Container) -> dict[str, str]:
    if container.env_from:
        raise CannotStart("CreateContainerConfigError", "envFrom is not available without Kubernetes")
    env: dict[str, str] = {}
    for variable in container.env:
        if not variable.name or "=" in variable.name or "\0" in variable.name + variable.value:
            raise CannotStart("CreateContainerConfigError", f"not an environment variable: {variable.name!r}")
        env[variable.name] = expand(variable.value, env) if variable.value_from is None else _read_source(pod, variable)
    return env


def _read_source(pod: Pod, variable: EnvVar) -> str:
    path = str(((variable.value_from or {}).get("fieldRef") or {}).get("fieldPath") or "")
    meta = pod.metadata
    fields = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }
    if path in fields:
        return fields[path]
    if match := _METADATA_FIELD.match(path):
        return (meta.labels if match[1] == "labels" else meta.annotations).get(match[2], "")
    source = path or ", ".join(variable.value_from or {}) or "nothing"
    raise CannotStart(
        "CreateContainerConfigError", f"variable {variable.name}: its source ({source}) is not available here"
    )


def _volumes(pod: Pod, container: Container) -> tuple[Volume, ...]:
    sources = {str(volume.get("name")): volume for volume in pod.spec.volumes}
    volumes = []
    for mount in container.volume_mounts:
        source = sources.get(mount.name)
        if source is None:
            raise CannotStart("CreateContainerConfigError", f"volume {mount.name!r} is not described")
        if mount.sub_path or mount.sub_path_expr:
            raise CannotStart("FailedMount", f"volume {mount.name!r}: subPath needs a container engine or Kubernetes")
        volumes.append(_volume(mount.name, source, mount.mount_path, mount.read_only))
    # Parents first, so that a mount inside another mount stays visible.
    return tuple(sorted(volumes, key=lambda volume: volume.mount_path.count("/")))


# Volumes that need Kubernetes: how users call them, and the field that names the object.
_CLUSTER_VOLUMES = {
    "persistentVolumeClaim": ("volume claim", "claimName"),
    "nfs": ("NFS folder", "path"),
    "configMap": ("ConfigMap", "name"),
    "secret": ("Secret", "secretName"),
}


def _volume(name: str, source: Mapping[str, Any], mount_path: str, read_only: bool) -> Volume:
    # The store accepts any JSON here, so every type is checked.
    if isinstance(path := (source.get("hostPath") or {}).get("path"), str):
        return Volume("host", mount_path, source=path, read_only=read_only)
    empty = source.get("emptyDir")
    if isinstance(empty, Mapping):
        if empty.get("medium") == "Memory":
            return Volume("memory", mount_path, size=_amount(f"volume {name}", empty.get("sizeLimit"), units.quantity))
        if re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name):
            return Volume("folder", mount_path, name=name, read_only=read_only)
    kind = next((key for key in source if key != "name"), "nothing")
    if kind in _CLUSTER_VOLUMES and isinstance(source[kind], Mapping):
        label, key = _CLUSTER_VOLUMES[kind]
        message = f"{label} {source[kind].get(key)} cannot be mounted at {mount_path}: there is no Kubernetes here"
        raise CannotStart("FailedMount", f"{message}; mount a folder of this machine instead (-v)")
    raise CannotStart("FailedMount", f"volume {name!r}: {kind} is not available without a container engine")
