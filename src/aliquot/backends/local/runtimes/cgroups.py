"""Memory and CPU limits, where the machine has control groups that we may write.

    version 1   a tree for each controller below /sys/fs/cgroup; ours is `aliquot` in each
    version 2   one tree. Ours is `aliquot` at its top, or where that is not ours to write in the group we were started
                in, if it was handed over to us (systemd's Delegate=yes, a container's own group)

A group of version 2 may limit its children only while no process is in it, but for the top of the machine. So in a
group that was handed over we move aside first, into `aliquot-platform` next to `aliquot`. Others that are in it are
not ours to move.

A pod gets a group only when it asks for something. What the machine does not allow is left out, and `sentence` says
so: a limit that cannot be kept is no reason not to run.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OURS, _PLATFORM = "aliquot", "aliquot-platform"
_WANTED = {"memory": "memory", "cpu": "CPU"}  # as the kernel calls them, and as people do
_WELCOME = ("dmem",)  # memory of devices, from kernel 6.14 on: a GPU driver that keeps limits itself uses it
_PERIOD = 100_000  # microseconds; the kernel's own default


@dataclass(frozen=True, slots=True)
class Group:
    path: Path
    limits: dict[str, str] = field(default_factory=dict)


class Unusable(Exception):
    """Why there are no limits; the text follows a "because"."""


class Cgroups:
    def __init__(self, root: Path = _ROOT, own: Path | None = None) -> None:
        """`own` is the group of version 2 that we are in; asked of the kernel unless given."""
        self.version = 2 if (root / "cgroup.controllers").exists() else 1
        # Where our groups are, by controller.
        self._places: dict[str, Path] = {}
        self._why = ""
        try:
            self._places = _second(root, own or own_group(root)) if self.version == 2 else _first(root)
        except Unusable as exc:
            self._why = str(exc)

    @property
    def sentence(self) -> str:
        held = [word for name, word in _WANTED.items() if name in self._places]
        lost = [word for name, word in _WANTED.items() if name not in self._places]
        if not lost:
            return "memory and CPU limits hold"
        missing = f"{' and '.join(lost)} limits are not enforced, because {self._why or 'their controller is missing'}"
        return f"{held[0]} limits hold, {missing}" if held else missing

    def leaf(self, uid: str) -> Path | None:
        """The one group of a pod, in the tree of version 2; None where there is none for us."""
        place = next(iter(self._places.values()), None) if self.version == 2 else None
        return None if place is None else place / uid

    def groups(self, uid: str, memory: int | None, cpu: int | None, weight: int | None) -> list[Group]:
        """The groups a pod joins; amounts are bytes and thousandths of a core."""
        shares = None if weight is None else min(max(2, weight * 1024 // 1000), 262_144)
        limits = _limits_2(memory, cpu, shares) if self.version == 2 else _limits_1(memory, cpu, shares)
        by_path: dict[Path, dict[str, str]] = {}
        for name, value in limits.items():
            place = self._places.get(name.partition(".")[0])
            if place is not None:
                by_path.setdefault(place / uid, {})[name] = value
        return [Group(path, found) for path, found in by_path.items()]


def _limits_2(memory: int | None, cpu: int | None, shares: int | None) -> dict[str, str]:
    limits = {} if memory is None else {"memory.max": str(memory)}
    if cpu is not None:
        limits["cpu.max"] = f"{max(1000, cpu * _PERIOD // 1000)} {_PERIOD}"
    if shares is not None:
        # Kubernetes' own conversion from the range of version 1.
        limits["cpu.weight"] = str(1 + (shares - 2) * 9999 // 262_142)
    return limits


def _limits_1(memory: int | None, cpu: int | None, shares: int | None) -> dict[str, str]:
    limits = {} if memory is None else {"memory.limit_in_bytes": str(memory)}
    if cpu is not None:
        limits["cpu.cfs_quota_us"] = str(max(1000, cpu * _PERIOD // 1000))
    if shares is not None:
        limits["cpu.shares"] = str(shares)
    return limits


def killed_for_memory(groups: Iterable[Path]) -> bool:
    """Whether the kernel has ended a process of a pod because its memory was used up."""
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


# --- finding a place


def _first(root: Path) -> dict[str, Path]:
    places, why = {}, Unusable("the machine has no control groups")
    for controller in _WANTED:
        if (root / controller).is_dir():
            try:
                places[controller] = _made(root / controller / _OURS)
            except OSError as exc:
                why = _reason(root / controller, exc)
    if not places:
        raise why
    return places


def _second(root: Path, own: Path) -> dict[str, Path]:
    """The top of the tree before our own group: jobs that outlive us are then in nobody's way."""
    wanted = (*_WANTED, *_WELCOME)
    try:
        return delegate(root, wanted)
    except Unusable:
        if own == root:
            raise
        return delegate(own, wanted)


def own_group(root: Path) -> Path:
    """The group of version 2 that this process is in, or was in before it moved aside."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = root / line[3:].strip("/")
                return path.parent if path.name == _PLATFORM else path
    return root


def delegate(base: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Let children of a group of version 2 be limited; where they go, by controller."""
    try:
        offered = (base / "cgroup.controllers").read_text().split()
        found = [controller for controller in wanted if controller in offered]
        if not found:
            raise Unusable(f"{base} has no controller for them")
        place = _made(base / _OURS)
        enable = " ".join(f"+{controller}" for controller in found)
        try:
            _write(base / "cgroup.subtree_control", enable)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            _write(_made(base / _PLATFORM) / "cgroup.procs", "0")
            _write(base / "cgroup.subtree_control", enable)
        _write(place / "cgroup.subtree_control", enable)
    except OSError as exc:
        raise _reason(base, exc) from exc
    return dict.fromkeys(found, place)


def _made(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    if not os.access(path, os.W_OK):  # made by a platform that was started by somebody else
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return path


def _write(path: Path, text: str) -> None:
    # Opened without O_CREAT: a control file is there or the kernel does not have it.
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _reason(path: Path, exc: OSError) -> Unusable:
    if exc.errno == errno.EBUSY:
        return Unusable(f"other processes are in the control group {path}")
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unusable(f"{path} cannot be written")
    return Unusable(f"{path} cannot be used: {(exc.strerror or str(exc)).lower()}")
