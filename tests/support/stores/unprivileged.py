"""Runs a program as an unprivileged user, also from root: `python unprivileged.py UID PROGRAM [ARGUMENT]...`.

Our Python may be in a folder that only root can enter. Then the program runs in a mount namespace in which the path to
Python is accessible, and nothing else differs.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import aliquot
from aliquot.backends.local.runtimes import syscalls

UID = 54_321  # of no user


def main(uid: int, command: list[str]) -> None:
    if os.geteuid() == 0:
        _make_python_accessible()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execv(command[0], command)


def _make_python_accessible() -> None:
    needed = {Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix, Path(aliquot.__file__).parents[1])}
    blocked = {path: barrier for path in needed if (barrier := _barrier(path)) is not None}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    handles = {path: os.open(path, os.O_PATH) for path in blocked}
    for barrier in set(blocked.values()):
        syscalls.mount("access", str(barrier), "tmpfs", options="mode=755")
    for path in sorted(blocked):
        path.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{handles[path]}", str(path), flags=syscalls.MS_BIND | syscalls.MS_REC)


def _barrier(path: Path) -> Path | None:
    """The outermost folder of the path that other users cannot enter."""
    folders = [*reversed(path.parents), path]
    return next((folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH), None)


def unprivileged_programs(programs: Path, uid: int, into: Path) -> Path:
    """A folder with wrappers of our programs that run as that user."""
    into.mkdir()
    for name in ("python", "aliquot", "runai"):
        script = into / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {uid} {programs / name} "$@"\n')
        script.chmod(0o755)
    return into


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
