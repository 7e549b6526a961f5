"""The files that a node needs to enforce GPU fractions: the sharing library, and a folder for gate files.

    install       copies the library to a node and creates the folder; `aliquot node-files` calls it
    daemon_set    the DaemonSet that runs it once on every node, in a pod that idles afterwards

A library that pods have mounted is never overwritten. A new version replaces it under the same name, and running pods
keep the old one until they end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from aliquot import labels, native
from aliquot.api import Json
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import PlatformError, Unavailable

NAME = "aliquot-node-files"
_LIBRARY_MOUNT, _GATES_MOUNT = "/host/library", "/host/gates"
_IDLE = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"


@dataclass(frozen=True, slots=True)
class Installer:
    """The image and command that install the files on a node."""

    image: str
    command: tuple[str, ...] = ("aliquot", "node-files", "--target", _LIBRARY_MOUNT, "--gates", _GATES_MOUNT)


def install(target: Path, gates: Path | None = None, machine: str | None = None) -> Path:
    """Copies the library for `machine` (by default this one) into `target`, atomically; returns its path."""
    source = native.library(machine)
    if source is None:
        raise Unavailable(
            f"the sharing library was not built for {machine or os.uname().machine}",
            hint="run `make native`, or take a released package",
        )
    try:
        library = _copy(source, target)
        if gates is not None:
            gates.mkdir(parents=True, exist_ok=True)
            gates.chmod(0o1777)  # pods of any user create gates there, and cannot remove each other's
    except OSError as exc:
        raise PlatformError(f"cannot write {exc.filename or target}: {(exc.strerror or str(exc)).lower()}") from exc
    return library


def _copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    library, fresh = target / "libgpushare.so", target / f".libgpushare.{os.getpid()}.new"
    data = source.read_bytes()
    if library.is_file() and library.read_bytes() == data and library.stat().st_mode & 0o777 == 0o755:
        return library
    try:
        with fresh.open("wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o755)
            os.fsync(file.fileno())
        fresh.rename(library)
    finally:
        fresh.unlink(missing_ok=True)
    return library


def daemon_set(settings: GpuSharingSettings, installer: Installer | None = None) -> Json:
    """Runs on every Linux node whose GPUs are not simulated."""
    installer = installer or Installer(settings.image)
    pod_labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "aliquot"}
    nodes = [
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": labels.SIMULATED, "operator": "NotIn", "values": ["true"]},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": nodes}]}
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "initContainers": [
            {
                **_container("files", installer.image, list(installer.command), settings),
                "volumeMounts": [
                    {"name": "library", "mountPath": _LIBRARY_MOUNT},
                    {"name": "gates", "mountPath": _GATES_MOUNT},
                ],
                "securityContext": {"runAsUser": 0},  # the folders belong to root
            }
        ],
        "containers": [_container("stay", installer.image, ["/bin/sh", "-c", _IDLE], settings)],
        "volumes": [
            {"name": "library", "hostPath": {"path": settings.library_folder, "type": "DirectoryOrCreate"}},
            {"name": "gates", "hostPath": {"path": settings.gate_folder, "type": "DirectoryOrCreate"}},
        ],
    }
    return {
        "metadata": {"name": NAME, "namespace": labels.SYSTEM_NAMESPACE, "labels": pod_labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": pod_labels}, "spec": spec},
        },
    }


def _container(name: str, image: str, command: list[str], settings: GpuSharingSettings) -> Json:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
    }
