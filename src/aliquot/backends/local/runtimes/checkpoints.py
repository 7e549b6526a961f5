"""The checkpoint folder of each workload, which outlives its pods: <data>/checkpoints/<namespace>/<workload uid>/.

All pods of the workload have it mounted at the same path, and find there what earlier pods wrote: after a failure, an
eviction, `aliquot down`, a power cut. It is removed with the workload (see aliquot.backends.local.checkpoint_gc).

The namespace is part of the path because a pod names its workload itself: a pod that names a workload of another
project gets a folder in its own project.
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
        """The workload's folder, created where it is missing, with this owner."""
        path = self._path(namespace, workload)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        pod_folder.make_folder(path, owner)
        return path

    def all(self) -> list[tuple[str, str]]:
        """(namespace, workload uid) of every folder."""
        return [(path.parent.name, path.name) for path in sorted(self._root.glob("*/*"))]

    def remove(self, namespace: str, workload: str) -> None:
        path = self._path(namespace, workload)
        pod_folder.remove_tree(path)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # fails while the project has others

    def _path(self, namespace: str, workload: str) -> Path:
        return self._root / os.path.basename(namespace) / os.path.basename(workload)
