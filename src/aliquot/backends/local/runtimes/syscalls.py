"""Linux system calls that Python 3.11 does not offer, and facts about processes from /proc.

The launcher, which starts once per pod, imports this: standard library only, and little of it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
_PR_SET_DUMPABLE = 4
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(handle: int, kind: int) -> None:
    _check(_libc.setns(handle, kind), "setns")


def mount(source: str, target: str, file_system: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), file_system.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {target}")


def read_only(target: str) -> None:
    """Make a bind mount, and the mounts below it, read-only and without set-uid programs."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR), -100, target.encode(), _AT_RECURSIVE, ctypes.byref(attributes), size
    )
    if result != 0:  # before Linux 5.12: this mount alone
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def enter_root(path: str) -> None:
    """Make a mounted folder the root, and unmount the old one."""
    os.chdir(path)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def set_host_name(name: str) -> None:
    text = name.encode()
    _check(_libc.sethostname(text, len(text)), "sethostname")


def allow_own_proc() -> None:
    """After a change of uid /proc/self belongs to root; this makes it ours again, to write the uid map."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def punch(handle: int, end: int) -> None:
    """Give the disk space of a file's first `end` bytes back; offsets and size stay."""
    mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    _check(_libc.fallocate(handle, mode, ctypes.c_long(0), ctypes.c_long(end)), "fallocate")


def start_time(pid: int) -> str:
    """Tells a process from a later one with the same pid; empty where there is none, or only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the program's name in brackets, which may contain spaces and brackets itself.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def parent(pid: int) -> int:
    """The parent's pid; 0 where there is none, or no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def program(pid: int) -> str:
    """The name of a process, in plain characters; a question mark where there is no such process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return re.sub(r"[^A-Za-z0-9._:+-]", "", file.read()) or "?"
    except OSError:
        return "?"


def pid_namespace(pid: int) -> str:
    """The id of the process's PID namespace; empty where we may not read it."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def variable(pid: int, prefix: bytes) -> str:
    """The value of a variable (`prefix` is NAME=) in a process's initial environment; empty where there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entry = next((entry for entry in file.read().split(b"\0") if entry.startswith(prefix)), prefix)
    except OSError:
        return ""
    return entry.removeprefix(prefix).decode("utf-8", "replace")


def children(pid: int) -> list[int]:
    """The pids of a process's children, oldest first."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


def command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def pids_with_variable(entry: bytes) -> list[int]:
    """Processes whose initial environment has this entry (NAME=value), as far as we may read them."""
    matches = []
    for pid in pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if entry in file.read().split(b"\0") and start_time(pid):
                    matches.append(pid)
        except OSError:
            continue
    return matches
