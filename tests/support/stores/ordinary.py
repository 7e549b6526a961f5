"""Run a program as an ordinary user, also from root: `python ordinary.py UID PROGRAM [ARGUMENT]...`.

Our Python may lie where only root may go. Then the program gets a mount namespace in which the way to it is open, and
nothing else has changed.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import aliquot
from aliquot.backends.local.runtimes import syscalls

UID = 54_321  # nobody's


def main(uid: int, command: list[str]) -> None:
    if os.geteuid() == 0:
        _open_the_way()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execv(command[0], command)


def _open_the_way() -> None:
    needed = {Path(place).resolve() for place in (sys.prefix, sys.base_prefix, Path(aliquot.__file__).parents[1])}
    shut = {place: gate for place in needed if (gate := _gate(place)) is not None}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    handles = {place: os.open(place, os.O_PATH) for place in shut}
    for gate in set(shut.values()):
        syscalls.mount("way", str(gate), "tmpfs", options="mode=755")
    for place in sorted(shut):
        place.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{handles[place]}", str(place), flags=syscalls.MS_BIND | syscalls.MS_REC)


def _gate(place: Path) -> Path | None:
    """The outermost folder on the way that does not let others through."""
    way = [*reversed(place.parents), place]
    return next((folder for folder in way if not folder.stat().st_mode & stat.S_IXOTH), None)


def wrapped(programs: Path, uid: int, into: Path) -> Path:
    """A folder with our programs, each of which runs as that user."""
    into.mkdir()
    for name in ("python", "aliquot", "runai"):
        script = into / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {uid} {programs / name} "$@"\n')
        script.chmod(0o755)
    return into


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
