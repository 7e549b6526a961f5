"""Runs a program as in a container: in its own mount namespace, with the files of a GPU fraction mounted.

    python3 -IS container_exec.py SPEC PROGRAM [ARGUMENT ...]

SPEC is JSON: `mounts`, a list of [source, target, read-only]; `pidfile`, the file for the program's pid if it gets its
own PID namespace, otherwise null. Nothing outside the namespace changes: a tmpfs with the same entries is mounted over
a folder that needs a new entry.
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


def mount(source: str, target: str, form: str | None = None, flags: int = 0, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, form)]
    text = None if options is None else options.encode()
    checked(libc.mount(*words, ctypes.c_ulong(flags), text), f"cannot mount {target}")


def bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, flags=BIND | REC)


def cover_with_tmpfs(folder: str) -> None:
    """Mount a tmpfs over this folder, with all its entries."""
    before = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    mount("gpushare", folder, "tmpfs", options="mode=755,size=1m")
    for entry in os.scandir(before):
        source, target = f"/proc/self/fd/{before}/{entry.name}", os.path.join(folder, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(source), target)
        else:
            bind(source, target)
    os.close(before)


def mount_files(mounts: list[tuple[str, str, bool]]) -> None:
    covered: set[str] = set()
    for source, target, read_only in mounts:
        folder = os.path.dirname(target)
        existing = folder
        while not os.path.isdir(existing):
            existing = os.path.dirname(existing)
        if not any(existing == parent or existing.startswith(parent + "/") for parent in covered):
            cover_with_tmpfs(existing)
            covered.add(existing)
        os.makedirs(folder, exist_ok=True)
        if os.path.islink(target):
            os.unlink(target)
        bind(source, target)
        if read_only:
            mount("none", target, flags=BIND | REMOUNT | RDONLY)


def into_pid_namespace(pidfile: str) -> None:
    """Returns in the child, process 1 of the new namespace; the parent exits with the child's status."""
    child = os.fork()
    if child == 0:
        libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)  # not inherited by a fork
        mount("proc", "/proc", "proc")
        return
    with open(pidfile + ".part", "w") as file:
        file.write(str(child))
    os.rename(pidfile + ".part", pidfile)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


def main() -> None:
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)  # if the suite is killed, so are its programs
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    checked(libc.unshare(NEWNS | (NEWPID if spec["pidfile"] else 0)), "cannot unshare namespaces (needs root)")
    mount("none", "/", flags=REC | PRIVATE)
    mount_files(spec["mounts"])
    if spec["pidfile"]:
        into_pid_namespace(spec["pidfile"])
    os.execvp(command[0], command)


main()
