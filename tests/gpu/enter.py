"""Runs a program as a container has it: the files of a fraction mounted in a mount namespace of its own.

    python3 -IS enter.py SPEC PROGRAM [ARGUMENT ...]

SPEC is JSON: `mounts`, a list of [source, place, read-only]; `pidfile`, where to write the program's process id when it
is to have a PID namespace too, else null. Nothing outside the namespace is changed: a folder that needs a new entry is
covered by one in memory that has all the old entries as well.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

NEWNS, NEWPID = 0x00020000, 0x20000000
RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
SET_DEATH_SIGNAL = 1

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        sys.exit(f"enter: {what}: {os.strerror(number)}")


def mount(source: str, place: str, form: str | None = None, flags: int = 0, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, place, form)]
    text = None if options is None else options.encode()
    checked(libc.mount(*words, ctypes.c_ulong(flags), text), f"cannot mount {place}")


def bind(source: str, place: str) -> None:
    if os.path.isdir(source):
        os.makedirs(place, exist_ok=True)
    elif not os.path.lexists(place):
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, place, flags=BIND | REC)


def cover(folder: str) -> None:
    """Mount a tmpfs over this folder, with all its entries."""
    before = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    mount("gpushare", folder, "tmpfs", options="mode=755,size=1m")
    for entry in os.scandir(before):
        source, place = f"/proc/self/fd/{before}/{entry.name}", os.path.join(folder, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(source), place)
        else:
            bind(source, place)
    os.close(before)


def place_files(mounts: list[tuple[str, str, bool]]) -> None:
    covered: set[str] = set()
    for source, place, read_only in mounts:
        folder = os.path.dirname(place)
        there = folder
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        if not any(there == one or there.startswith(one + "/") for one in covered):
            cover(there)
            covered.add(there)
        os.makedirs(folder, exist_ok=True)
        if os.path.islink(place):
            os.unlink(place)
        bind(source, place)
        if read_only:
            mount("none", place, flags=BIND | REMOUNT | RDONLY)


def into_pid_namespace(pidfile: str) -> None:
    """Returns in the child, process 1 of the new namespace; the parent exits with the child's status."""
    child = os.fork()
    if child == 0:
        libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)  # a fork does not inherit it
        mount("proc", "/proc", "proc")
        return
    with open(pidfile + ".part", "w") as file:
        file.write(str(child))
    os.rename(pidfile + ".part", pidfile)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


def main() -> None:
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)  # a suite that was killed leaves nobody on the card
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    checked(libc.unshare(NEWNS | (NEWPID if spec["pidfile"] else 0)), "cannot leave the namespaces (root is needed)")
    mount("none", "/", flags=REC | PRIVATE)
    place_files(spec["mounts"])
    if spec["pidfile"]:
        into_pid_namespace(spec["pidfile"])
    os.execvp(command[0], command)


main()
