"""What nodes need so that parts of their GPUs can be fenced: the sharing library, and a folder for gates.

    put           copies both onto a node; what `aliquot node-files` does
    daemon_set    runs that once on every node, as a pod that then does nothing

A library that pods have mounted is never written over: the next takes its place under the same name, and they keep
theirs until they end.
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
_LIBRARY, _GATES = "/host/library", "/host/gates"
_STAY = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"


@dataclass(frozen=True, slots=True)
class Installer:
    """How the files get onto a node: an image, and what it runs."""

    image: str
    command: tuple[str, ...] = ("aliquot", "node-files", "--target", _LIBRARY, "--gates", _GATES)


def install(target: Path, gates: Path | None = None, machine: str | None = None) -> Path:
    """The library of this machine's kind in a folder, complete or not at all; where it is now."""
    source = native.library(machine)
    if source is None:
        raise Unavailable(
            f"the sharing library was not built for {machine or os.uname().machine}",
            hint="run `make native`, or take a released package",
        )
    try:
        made = _copy(source, target)
        if gates is not None:
            gates.mkdir(parents=True, exist_ok=True)
            gates.chmod(0o1777)  # pods of any user make gates there, and none removes another's
    except OSError as exc:
        raise PlatformError(f"cannot write {exc.filename or target}: {(exc.strerror or str(exc)).lower()}") from exc
    return made


def _copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    made, fresh = target / "libgpushare.so", target / f".libgpushare.{os.getpid()}.new"
    data = source.read_bytes()
    if made.is_file() and made.read_bytes() == data and made.stat().st_mode & 0o777 == 0o755:
        return made
    try:
        with fresh.open("wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o755)
            os.fsync(file.fileno())
        fresh.rename(made)
    finally:
        fresh.unlink(missing_ok=True)
    return made


def daemon_set(settings: GpuSharingSettings, step: Installer | None = None) -> Json:
    """On every Linux node whose GPUs are real, or could be."""
    step = step or Installer(settings.image)
    marks = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "aliquot"}
    real = [
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": labels.SIMULATED, "operator": "NotIn", "values": ["true"]},
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": real}]}
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "initContainers": [
            {
                **_container("files", step.image, list(step.command), settings),
                "volumeMounts": [
                    {"name": "library", "mountPath": _LIBRARY},
                    {"name": "gates", "mountPath": _GATES},
                ],
                "securityContext": {"runAsUser": 0},  # the folders are root's, and stay so
            }
        ],
        "containers": [_container("stay", step.image, ["/bin/sh", "-c", _STAY], settings)],
        "volumes": [
            {"name": "library", "hostPath": {"path": settings.library_folder, "type": "DirectoryOrCreate"}},
            {"name": "gates", "hostPath": {"path": settings.gate_folder, "type": "DirectoryOrCreate"}},
        ],
    }
    return {
        "metadata": {"name": NAME, "namespace": labels.SYSTEM_NAMESPACE, "labels": marks},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": marks}, "spec": spec},
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
