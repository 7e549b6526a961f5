"""Memory and CPU limits, on machines with control groups that we may write.

    version 1   a tree for each controller below /sys/fs/cgroup; ours is `aliquot` in each
    version 2   one tree. Ours is `aliquot` at its top. Where we may not write there, ours is in the group we were
                started in, if that was delegated to us (systemd's Delegate=yes, a container's own group)

A group of version 2 may limit its children only while it has no processes of its own; the root group is exempt. So in
a delegated group we first move ourselves into `aliquot-platform`, next to `aliquot`. Processes of others are not moved.

A pod gets a group only when it has requests or limits. What the machine does not allow is left out, and `summary` says
so: a limit that cannot be enforced does not keep a pod from running.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_JOBS, _PLATFORM = "aliquot", "aliquot-platform"
_CONTROLLERS = {"memory": "memory", "cpu": "CPU"}  # the kernel's name, and the name in messages
_OPTIONAL = ("dmem",)  # device memory, from kernel 6.14 on: a GPU driver that enforces limits itself uses it
_PERIOD = 100_000  # microseconds; the kernel's default


@dataclass(frozen=True, slots=True)
class Cgroup:
    path: Path
    limits: dict[str, str] = field(default_factory=dict)


class CgroupsUnavailable(Exception):
    """Why limits are not enforced; the text follows a "because"."""


class Cgroups:
    def __init__(self, root: Path = _ROOT, own: Path | None = None) -> None:
        """`own` is the group of version 2 that this process is in; read from /proc unless given."""
        self.version = 2 if (root / "cgroup.controllers").exists() else 1
        # The parents of the pods' groups, by controller.
        self._parents: dict[str, Path] = {}
        self._reason = ""
        try:
            self._parents = _parents_v2(root, own or own_group(root)) if self.version == 2 else _parents_v1(root)
        except CgroupsUnavailable as exc:
            self._reason = str(exc)

    @property
    def summary(self) -> str:
        """A sentence about which limits are enforced."""
        enforced = [label for name, label in _CONTROLLERS.items() if name in self._parents]
        missing = [label for name, label in _CONTROLLERS.items() if name not in self._parents]
        if not missing:
            return "memory and CPU limits hold"
        reason = self._reason or "their controller is missing"
        sentence = f"{' and '.join(missing)} limits are not enforced, because {reason}"
        return f"{enforced[0]} limits hold, {sentence}" if enforced else sentence

    def leaf(self, uid: str) -> Path | None:
        """The group of a pod in the tree of version 2; None where we cannot create one."""
        parent = next(iter(self._parents.values()), None) if self.version == 2 else None
        return None if parent is None else parent / uid

    def groups(self, uid: str, memory: int | None, cpu: int | None, weight: int | None) -> list[Cgroup]:
        """The groups that a pod joins; amounts are bytes and thousandths of a core."""
        shares = None if weight is None else min(max(2, weight * 1024 // 1000), 262_144)
        limits = _limits_v2(memory, cpu, shares) if self.version == 2 else _limits_v1(memory, cpu, shares)
        by_path: dict[Path, dict[str, str]] = {}
        for name, value in limits.items():
            parent = self._parents.get(name.partition(".")[0])
            if parent is not None:
                by_path.setdefault(parent / uid, {})[name] = value
        return [Cgroup(path, group_limits) for path, group_limits in by_path.items()]


def _limits_v2(memory: int | None, cpu: int | None, shares: int | None) -> dict[str, str]:
    limits = {} if memory is None else {"memory.max": str(memory)}
    if cpu is not None:
        limits["cpu.max"] = f"{max(1000, cpu * _PERIOD // 1000)} {_PERIOD}"
    if shares is not None:
        # Kubernetes' conversion from the range of version 1.
        limits["cpu.weight"] = str(1 + (shares - 2) * 9999 // 262_142)
    return limits


def _limits_v1(memory: int | None, cpu: int | None, shares: int | None) -> dict[str, str]:
    limits = {} if memory is None else {"memory.limit_in_bytes": str(memory)}
    if cpu is not None:
        limits["cpu.cfs_quota_us"] = str(max(1000, cpu * _PERIOD // 1000))
    if shares is not None:
        limits["cpu.shares"] = str(shares)
    return limits


def killed_for_memory(groups: Iterable[Path]) -> bool:
    """Whether the kernel has killed a process of a pod that was out of memory."""
    for path in (group / name for group in groups for name in ("memory.events", "memory.oom_control")):
        with contextlib.suppress(OSError):
            counts = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
            if counts.get("oom_kill", "0") != "0":
                return True
    return False


def remove(groups: Iterable[Path]) -> None:
    for path in groups:
        with contextlib.suppress(OSError):
            path.rmdir()


# --- finding the parents of the pods' groups


def _parents_v1(root: Path) -> dict[str, Path]:
    parents, reason = {}, CgroupsUnavailable("the machine has no control groups")
    for controller in _CONTROLLERS:
        if (root / controller).is_dir():
            try:
                parents[controller] = _create(root / controller / _JOBS)
            except OSError as exc:
                reason = _reason(root / controller, exc)
    if not parents:
        raise reason
    return parents


def _parents_v2(root: Path, own: Path) -> dict[str, Path]:
    """At the top of the tree if possible: jobs that outlive us are then not in our own group."""
    controllers = (*_CONTROLLERS, *_OPTIONAL)
    try:
        return delegate(root, controllers)
    except CgroupsUnavailable:
        if own == root:
            raise
        return delegate(own, controllers)


def own_group(root: Path) -> Path:
    """The group of version 2 that this process is in, or was in before it moved into `aliquot-platform`."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = root / line[3:].strip("/")
                return path.parent if path.name == _PLATFORM else path
    return root


def delegate(base: Path, controllers: Sequence[str]) -> dict[str, Path]:
    """Enable controllers for the children of a group of version 2; the parent of the pods' groups, by controller."""
    try:
        available = (base / "cgroup.controllers").read_text().split()
        usable = [controller for controller in controllers if controller in available]
        if not usable:
            raise CgroupsUnavailable(f"{base} has no controller for them")
        parent = _create(base / _JOBS)
        enable = " ".join(f"+{controller}" for controller in usable)
        try:
            _write(base / "cgroup.subtree_control", enable)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            _write(_create(base / _PLATFORM) / "cgroup.procs", "0")
            _write(base / "cgroup.subtree_control", enable)
        _write(parent / "cgroup.subtree_control", enable)
    except OSError as exc:
        raise _reason(base, exc) from exc
    return dict.fromkeys(usable, parent)


def _create(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    if not os.access(path, os.W_OK):  # created by a platform that another user started
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path


def _write(path: Path, text: str) -> None:
    # Opened without O_CREAT: the kernel has the control file or it does not.
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _reason(path: Path, exc: OSError) -> CgroupsUnavailable:
    if exc.errno == errno.EBUSY:
        return CgroupsUnavailable(f"other processes are in the control group {path}")
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CgroupsUnavailable(f"{path} cannot be written")
    return CgroupsUnavailable(f"{path} cannot be used: {(exc.strerror or str(exc)).lower()}")
