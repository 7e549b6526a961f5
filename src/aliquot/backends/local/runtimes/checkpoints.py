"""What outlives a pod: a folder for each workload, <data>/checkpoints/<namespace>/<workload uid>/.

All pods of the workload see it, at one place, and find there what those before them wrote: after a failure, an
eviction, `aliquot down`, a power cut. It goes when the workload goes (see aliquot.backends.local.checkpoint_gc).

The namespace is part of the path because a pod names its workload itself: one that names a stranger's gets a folder
of its own project, never the stranger's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from aliquot.backends.local.runtimes import pod_folder


class Checkpoints:
    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, namespace: str, workload: str, owner: int | None) -> Path:
        """The workload's folder, made where it is missing; `owner` gets it."""
        path = self._path(namespace, workload)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        pod_folder.make(path, owner)
        return path

    def all(self) -> list[tuple[str, str]]:
        """(namespace, workload uid) of every folder there is."""
        return [(path.parent.name, path.name) for path in sorted(self._root.glob("*/*"))]

    def remove(self, namespace: str, workload: str) -> None:
        path = self._path(namespace, workload)
        pod_folder.remove_tree(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # unless the project has others

    def _path(self, namespace: str, workload: str) -> Path:
        return self._root / os.path.basename(namespace) / os.path.basename(workload)
