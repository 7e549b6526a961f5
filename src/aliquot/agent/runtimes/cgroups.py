"""Memory and CPU limits, where the machine has control groups that we may write: version 1 or 2, as root.

A pod gets a group only when it asks for something. What the machine does not allow is left out, and `sentence` says
so: a limit that cannot be kept is no reason not to run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OURS = "aliquot"
_PERIOD = 100_000  # microseconds; the kernel's own default


@dataclass(frozen=True, slots=True)
class Group:
    path: Path
    limits: dict[str, str] = field(default_factory=dict)


class Cgroups:
    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self.version = _version(root)

    @property
    def sentence(self) -> str:
        return "memory and CPU limits hold" if self.version else "memory and CPU limits are not enforced"

    def groups(self, uid: str, memory: int | None, cpu: int | None, weight: int | None) -> list[Group]:
        """The groups a pod joins; amounts are bytes and thousandths of a core."""
        shares = None if weight is None else min(max(2, weight * 1024 // 1000), 262_144)
        if self.version == 2:
            return self._second(uid, memory, cpu, shares)
        if self.version == 1:
            return self._first(uid, memory, cpu, shares)
        return []

    def _second(self, uid: str, memory: int | None, cpu: int | None, shares: int | None) -> list[Group]:
        limits = {} if memory is None else {"memory.max": str(memory)}
        if cpu is not None:
            limits["cpu.max"] = f"{max(1000, cpu * _PERIOD // 1000)} {_PERIOD}"
        if shares is not None:
            # Kubernetes' own conversion from the range of version 1.
            limits["cpu.weight"] = str(1 + (shares - 2) * 9999 // 262_142)
        return [Group(self._root / _OURS / uid, limits)] if limits else []

    def _first(self, uid: str, memory: int | None, cpu: int | None, shares: int | None) -> list[Group]:
        groups = []
        if memory is not None:
            groups.append(Group(self._root / "memory" / _OURS / uid, {"memory.limit_in_bytes": str(memory)}))
        time = {} if cpu is None else {"cpu.cfs_quota_us": str(max(1000, cpu * _PERIOD // 1000))}
        if shares is not None:
            time["cpu.shares"] = str(shares)
        if time:
            groups.append(Group(self._root / "cpu" / _OURS / uid, time))
        return groups

    def killed_for_memory(self, uid: str) -> bool:
        first, second = self._root / "memory" / _OURS / uid / "memory.oom_control", self._root / _OURS / uid
        for path in (first, second / "memory.events"):
            with contextlib.suppress(OSError):
                return any(line.split() > ["oom_kill", "0"] for line in _lines(path) if line.startswith("oom_kill "))
        return False

    def remove(self, uid: str) -> None:
        for path in (self._root / "memory" / _OURS / uid, self._root / "cpu" / _OURS / uid, self._root / _OURS / uid):
            with contextlib.suppress(OSError):
                path.rmdir()


def _lines(path: Path) -> Sequence[str]:
    return path.read_text().splitlines()


def _version(root: Path) -> int:
    """2, 1, or 0 when there is nothing we may use."""
    if os.geteuid() != 0:
        return 0
    try:
        if (root / "cgroup.controllers").exists():
            (root / _OURS).mkdir(exist_ok=True)
            for folder in (root, root / _OURS):
                (folder / "cgroup.subtree_control").write_text("+memory +cpu")
            return 2
        for controller in ("memory", "cpu"):
            (root / controller / _OURS).mkdir(exist_ok=True)
        return 1
    except OSError:
        return 0
