"""Which uid the jobs of a project run under, when the platform runs as root.

A number once given is never given to another project: files with it may still lie somewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

FIRST = 200_001  # above the users of nearly every machine, below the ranges of container engines


class Uids:
    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._given: dict[str, int] = json.loads(file.read_text())
        except FileNotFoundError:
            self._given = {}

    def of(self, namespace: str) -> int:
        if namespace not in self._given:
            self._given[namespace] = max(self._given.values(), default=FIRST - 1) + 1
            self._save()
        return self._given[namespace]

    def _save(self) -> None:
        """On the disk before anybody uses the number."""
        fresh = self._file.with_suffix(".new")
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(self._given, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._file)
