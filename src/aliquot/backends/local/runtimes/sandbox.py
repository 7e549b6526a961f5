"""A root of its own for a pod, made by the launcher when the platform runs as root.

Nothing of the machine is there unless it is put there: the system's programs and libraries (read-only), our Python,
what the pod mounts. So the data folder, home folders and other projects' files do not have to be hidden; they do not
exist. Root inside is an ordinary uid outside, in a user namespace that owns none of the other namespaces: it cannot
change mounts or the host name, and it sees and signals only the processes of its pod.

The root is a fresh tmpfs at each start: mount points are made in it by the real root, so it must not hold anything
that a job has left there (a link instead of a folder would lead us outside).
"""

from __future__ import annotations

import os
from typing import Any

from aliquot.backends.local.runtimes import syscalls

# Programs and libraries. What is a link on the machine (/bin -> usr/bin) is the same link inside.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
          "stderr": "/proc/self/fd/2"}  # fmt: skip
SHM_BYTES = 64 << 20  # what containers get


class Refused(Exception):
    """The pod asks for something it may not have; the text is for its user."""


def enter(spec: dict[str, Any]) -> None:
    """Leave the machine's namespaces and root for the pod's own. The caller is process 1 of a new PID namespace."""
    shared_ipc = 0 if spec["hostIPC"] else syscalls.CLONE_NEWIPC
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | shared_ipc)
    syscalls.set_host_name(spec["hostname"])
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = os.path.join(spec["folder"], "root")
    os.makedirs(root, exist_ok=True)
    syscalls.mount("aliquot", root, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=256m")
    os.chown(root, spec["uid"], spec["uid"])
    _own_folders(root, spec)
    _system(root, spec)
    _devices(root, spec)
    _own_names(root, spec)
    for volume in spec["volumes"]:
        _volume(root, volume, os.path.realpath(spec["data"]))
    _inject(root, spec["injected"])  # last, so that no volume of the pod's can lie above it
    syscalls.enter_root(root)


def become_root_inside(uid: int) -> None:
    """An ordinary uid outside, root inside. Whatever we could do to the machine is gone after this."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    syscalls.allow_own_proc()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def join(pid: int) -> None:
    """Enter the namespaces of a running pod as its root; children of the caller are in its PID namespace too."""
    kinds = {"mnt": syscalls.CLONE_NEWNS, "uts": syscalls.CLONE_NEWUTS, "ipc": syscalls.CLONE_NEWIPC,
             "pid": syscalls.CLONE_NEWPID, "user": syscalls.CLONE_NEWUSER}  # fmt: skip
    # All are opened first: once in the pod's mount namespace its /proc has other numbers.
    handles = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds.items()]
    os.setgroups([])
    for handle, kind in handles:
        syscalls.setns(handle, kind)
        os.close(handle)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _system(root: str, spec: dict[str, Any]) -> None:
    """Parents before children, so that what lies inside another mount, or inside the hidden folder, stays visible."""
    hidden = os.path.realpath(spec["data"])
    shown = {path for path in (*SYSTEM, *spec["shown"], *_name_service()) if os.path.lexists(path)}
    for path in sorted(shown | {hidden}, key=lambda path: (path.count("/"), path)):
        if path == hidden:
            _hide(root + path)
        elif os.path.islink(path):
            _link(root + path, os.readlink(path))
        elif not os.path.lexists(root + path) or os.path.isdir(path) or path in spec["shown"]:
            bind(path, root + path, writable=False)


def _name_service() -> list[str]:
    """Where /etc/resolv.conf leads, when that is outside /etc."""
    target = os.path.realpath("/etc/resolv.conf")
    return [] if target.startswith("/etc/") else [target]


def _hide(target: str) -> None:
    if os.path.isdir(target):
        syscalls.mount("aliquot", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=64k")


def _link(place: str, target: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if not os.path.lexists(place):
        os.symlink(target, place)


def _devices(root: str, spec: dict[str, Any]) -> None:
    folder = root + "/dev"
    os.makedirs(folder + "/pts")
    os.makedirs(folder + "/shm")
    for path in (*(f"/dev/{name}" for name in _NODES), *spec["devices"]):
        if os.path.exists(path):
            bind(path, root + path, writable=True)
    for name, target in _LINKS.items():
        os.symlink(target, f"{folder}/{name}")
    secure = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", folder + "/pts", "devpts", secure, "newinstance,ptmxmode=0666,mode=620")
    if spec["hostIPC"]:  # shared memory by name is a part of it
        bind("/dev/shm", folder + "/shm", writable=True)  # noqa: S108  # the machine's own, on purpose
    else:
        syscalls.mount(
            "shm", folder + "/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"mode=1777,size={SHM_BYTES}"
        )


def _own_folders(root: str, spec: dict[str, Any]) -> None:
    for path in ("/proc", "/sys"):
        os.makedirs(root + path, exist_ok=True)
    for path in ("/run", "/var", "/root", "/tmp", "/home"):  # noqa: S108  # the pod's own
        os.makedirs(root + path, exist_ok=True)
        os.chown(root + path, spec["uid"], spec["uid"])
    os.symlink("/tmp", root + "/var/tmp")  # noqa: S108  # the pod's own
    syscalls.mount("proc", root + "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    syscalls.mount("/sys", root + "/sys", flags=syscalls.MS_BIND)
    syscalls.read_only(root + "/sys")
    for name, place in spec["own"].items():
        bind(os.path.join(spec["folder"], name), root + place, writable=True)


def _own_names(root: str, spec: dict[str, Any]) -> None:
    for name in ("hosts", "hostname"):
        if os.path.isfile(f"{root}/etc/{name}"):
            bind(os.path.join(spec["folder"], name), f"{root}/etc/{name}", writable=False)


def _inject(root: str, files: list[dict[str, Any]]) -> None:
    """Put files of ours where the pod can neither change, cover nor move them away.

    Each lies in a folder that is a mount of root's own: nothing can be renamed over it, and a folder that is a mount
    cannot be renamed itself. /run is the pod's, so it is made a mount too, or another could be put in its place.
    """
    if not files:
        return
    syscalls.mount(root + "/run", root + "/run", flags=syscalls.MS_BIND | syscalls.MS_REC)
    made: set[str] = set()
    for file in files:
        place = root + file["place"]
        if not _inside(os.path.dirname(place), root):
            raise Refused(f"cannot mount at {file['place']}: a part of it is a link")
        _open_folder(os.path.dirname(place), made)
        if os.path.islink(place):
            os.unlink(place)  # the folder is ours, and so is the link: a copy of what was there
        bind(file["source"], place, writable=not file["readOnly"])


def _open_folder(folder: str, made: set[str]) -> None:
    """A folder to put files into that is root's own, up to a mount: in memory, with all that was there."""
    there = folder
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    if not any(_inside(there, one) for one in made):
        if there != folder and not os.statvfs(there).f_flag & os.ST_RDONLY:
            # The pod's, perhaps: it could put another in the place of any folder in it that is not a mount.
            there = os.path.join(there, os.path.relpath(folder, there).split(os.sep)[0])
            os.mkdir(there)
        _in_memory(there)
        made.add(there)
    os.makedirs(folder, exist_ok=True)


def _in_memory(folder: str) -> None:
    before = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.mount("aliquot", folder, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
        for entry in os.scandir(before):
            source = f"/proc/self/fd/{before}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(source), os.path.join(folder, entry.name))
            else:
                bind(source, os.path.join(folder, entry.name), writable=True)  # as it was: read-only stays so
    finally:
        os.close(before)


def _volume(root: str, volume: dict[str, Any], hidden: str) -> None:
    place = root + os.path.normpath("/" + volume["place"].lstrip("/"))
    # The pod's own folders may hold links that a job has left there since the last start.
    if not _inside(place, root):
        raise Refused(f"cannot mount at {volume['place']}: a part of it is a link")
    if volume["kind"] == "memory":
        os.makedirs(place, exist_ok=True)
        limit = f",size={volume['size']}" if volume["size"] else ""
        syscalls.mount("memory", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777" + limit)
        return
    try:
        _bind_checked(volume, place, hidden)
    except OSError as exc:
        raise Refused(f"cannot mount {volume['source']} at {volume['place']}: {os.strerror(exc.errno or 0)}") from None


def _bind_checked(volume: dict[str, Any], place: str, hidden: str) -> None:
    """Look at what was opened, not at its name: a name can be made a link between look and use."""
    handle = os.open(volume["source"], os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.readlink(f"/proc/self/fd/{handle}")
        if not any(_inside(found, allowed) for allowed in volume["within"]):
            raise Refused(f"{volume['source']} leads to {found}, which pods may not mount")
        bind(f"/proc/self/fd/{handle}", place, writable=not volume["readOnly"])
        if volume["host"] and _inside(hidden, found):
            _hide(os.path.join(place, os.path.relpath(hidden, found)))
    finally:
        os.close(handle)


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)


def bind(source: str, target: str, *, writable: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    if not writable:
        syscalls.read_only(target)
