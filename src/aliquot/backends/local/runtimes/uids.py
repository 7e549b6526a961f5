"""Which uid the jobs of a project run under, when the platform runs as root.

A uid is never given to another project, not even after its project is deleted: files with it may still exist.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FIRST = 200_001  # above the users of nearly every machine, below the ranges of container engines


class ProjectUids:
    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._uid_by_namespace: dict[str, int] = json.loads(file.read_text())
        except FileNotFoundError:
            self._uid_by_namespace = {}

    def uid(self, namespace: str) -> int:
        if namespace not in self._uid_by_namespace:
            self._uid_by_namespace[namespace] = max(self._uid_by_namespace.values(), default=FIRST - 1) + 1
            self._save()
        return self._uid_by_namespace[namespace]

    def _save(self) -> None:
        """The uid is on disk before it is used."""
        temporary = self._file.with_suffix(".new")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self._uid_by_namespace, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._file)
