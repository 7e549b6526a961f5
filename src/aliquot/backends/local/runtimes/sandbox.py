"""The pod's own root file system and namespaces, which the launcher sets up when the platform runs as root.

Nothing of the machine is in it unless it is mounted there: the system's programs and libraries (read-only), our Python,
the pod's volumes. So the data folder, home folders and other projects' files need not be hidden; they do not exist.
Root inside is an ordinary uid outside, in a user namespace that owns none of the other namespaces: it cannot change
mounts or the host name, and it sees and signals only the processes of its pod.

The root is a new tmpfs at each start. The real root creates mount points in it, so it must not contain anything that a
job has left there: a link instead of a folder would lead outside.
"""

from __future__ import annotations

import os
from typing import Any

from aliquot.backends.local.runtimes import syscalls

# Programs and libraries. A link on the machine (/bin -> usr/bin) is the same link inside.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
_DEVICE_FILES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
          "stderr": "/proc/self/fd/2"}  # fmt: skip
SHM_BYTES = 64 << 20  # the default of container engines


class MountRefused(Exception):
    """The pod asks for a mount that it may not have; the text is for the user."""


def enter(spec: dict[str, Any]) -> None:
    """Enter the pod's own namespaces and root. The caller is process 1 of a new PID namespace."""
    new_ipc = 0 if spec["hostIPC"] else syscalls.CLONE_NEWIPC
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | new_ipc)
    syscalls.set_host_name(spec["hostname"])
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = os.path.join(spec["folder"], "root")
    os.makedirs(root, exist_ok=True)
    syscalls.mount("aliquot", root, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=256m")
    os.chown(root, spec["uid"], spec["uid"])
    _mount_pod_folders(root, spec)
    _mount_system(root, spec)
    _mount_devices(root, spec)
    _mount_host_files(root, spec)
    for volume in spec["volumes"]:
        _mount_volume(root, volume, os.path.realpath(spec["data"]))
    _inject(root, spec["injected"])  # last, so that no volume of the pod can cover it
    syscalls.enter_root(root)


def become_root_inside(uid: int) -> None:
    """Become an ordinary uid outside and root inside. After this we have no rights on the machine."""
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
    # All are opened first: /proc in the pod's mount namespace has other pids.
    handles = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds.items()]
    os.setgroups([])
    for handle, kind in handles:
        syscalls.setns(handle, kind)
        os.close(handle)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _mount_system(root: str, spec: dict[str, Any]) -> None:
    """Parents before children, so that a mount inside another one, or inside the hidden data folder, stays visible."""
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
    """The target of /etc/resolv.conf, when it is outside /etc."""
    target = os.path.realpath("/etc/resolv.conf")
    return [] if target.startswith("/etc/") else [target]


def _hide(target: str) -> None:
    if os.path.isdir(target):
        syscalls.mount("aliquot", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=64k")


def _link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.lexists(path):
        os.symlink(target, path)


def _mount_devices(root: str, spec: dict[str, Any]) -> None:
    folder = root + "/dev"
    os.makedirs(folder + "/pts")
    os.makedirs(folder + "/shm")
    for path in (*(f"/dev/{name}" for name in _DEVICE_FILES), *spec["devices"]):
        if os.path.exists(path):
            bind(path, root + path, writable=True)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{folder}/{name}")
    secure = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", folder + "/pts", "devpts", secure, "newinstance,ptmxmode=0666,mode=620")
    if spec["hostIPC"]:  # named shared memory belongs to the host's IPC
        bind("/dev/shm", folder + "/shm", writable=True)  # noqa: S108  # the machine's own, on purpose
    else:
        syscalls.mount(
            "shm", folder + "/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"mode=1777,size={SHM_BYTES}"
        )


def _mount_pod_folders(root: str, spec: dict[str, Any]) -> None:
    for path in ("/proc", "/sys"):
        os.makedirs(root + path, exist_ok=True)
    for path in ("/run", "/var", "/root", "/tmp", "/home"):  # noqa: S108  # the pod's own
        os.makedirs(root + path, exist_ok=True)
        os.chown(root + path, spec["uid"], spec["uid"])
    os.symlink("/tmp", root + "/var/tmp")  # noqa: S108  # the pod's own
    syscalls.mount("proc", root + "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    syscalls.mount("/sys", root + "/sys", flags=syscalls.MS_BIND)
    syscalls.read_only(root + "/sys")
    for name, pod_path in spec["own"].items():
        bind(os.path.join(spec["folder"], name), root + pod_path, writable=True)


def _mount_host_files(root: str, spec: dict[str, Any]) -> None:
    for name in ("hosts", "hostname"):
        if os.path.isfile(f"{root}/etc/{name}"):
            bind(os.path.join(spec["folder"], name), f"{root}/etc/{name}", writable=False)


def _inject(root: str, files: list[dict[str, Any]]) -> None:
    """Mount the injected files so that the pod can neither change, cover nor move them.

    Each is in a folder that is a mount of its own and belongs to root: nothing can be renamed over the file, and a
    mount cannot be renamed itself. /run belongs to the pod, so it is made a mount too: it cannot be replaced.
    """
    if not files:
        return
    syscalls.mount(root + "/run", root + "/run", flags=syscalls.MS_BIND | syscalls.MS_REC)
    made: set[str] = set()
    for file in files:
        path = root + file["place"]
        if not _inside(os.path.dirname(path), root):
            raise MountRefused(f"cannot mount at {file['place']}: a part of it is a link")
        _open_folder(os.path.dirname(path), made)
        if os.path.islink(path):
            os.unlink(path)  # both the folder and the link are our copies
        bind(file["source"], path, writable=not file["readOnly"])


def _open_folder(folder: str, made: set[str]) -> None:
    """Make sure that the folder, or a parent of it, is a tmpfs of root with all that was there before."""
    existing = folder
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    if not any(_inside(existing, tmpfs) for tmpfs in made):
        if existing != folder and not os.statvfs(existing).f_flag & os.ST_RDONLY:
            # The pod may own this folder, and could replace any folder in it that is not a mount.
            existing = os.path.join(existing, os.path.relpath(folder, existing).split(os.sep)[0])
            os.mkdir(existing)
        _cover_with_tmpfs(existing)
        made.add(existing)
    os.makedirs(folder, exist_ok=True)


def _cover_with_tmpfs(folder: str) -> None:
    """Mount a tmpfs over a folder, with the same entries."""
    before = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.mount("aliquot", folder, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755,size=1m")
        for entry in os.scandir(before):
            source = f"/proc/self/fd/{before}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(source), os.path.join(folder, entry.name))
            else:
                bind(source, os.path.join(folder, entry.name), writable=True)  # a read-only mount stays read-only
    finally:
        os.close(before)


def _mount_volume(root: str, volume: dict[str, Any], hidden: str) -> None:
    path = root + os.path.normpath("/" + volume["place"].lstrip("/"))
    # The pod's own folders may contain links that an earlier attempt has left there.
    if not _inside(path, root):
        raise MountRefused(f"cannot mount at {volume['place']}: a part of it is a link")
    if volume["kind"] == "memory":
        os.makedirs(path, exist_ok=True)
        limit = f",size={volume['size']}" if volume["size"] else ""
        syscalls.mount("memory", path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777" + limit)
        return
    try:
        _bind_checked(volume, path, hidden)
    except OSError as exc:
        raise MountRefused(
            f"cannot mount {volume['source']} at {volume['place']}: {os.strerror(exc.errno or 0)}"
        ) from None


def _bind_checked(volume: dict[str, Any], path: str, hidden: str) -> None:
    """Check the opened file, not its name: the name can become a link between check and use."""
    handle = os.open(volume["source"], os.O_PATH | os.O_CLOEXEC)
    try:
        real = os.readlink(f"/proc/self/fd/{handle}")
        if not any(_inside(real, allowed) for allowed in volume["within"]):
            raise MountRefused(f"{volume['source']} leads to {real}, which pods may not mount")
        bind(f"/proc/self/fd/{handle}", path, writable=not volume["readOnly"])
        if volume["host"] and _inside(hidden, real):
            _hide(os.path.join(path, os.path.relpath(hidden, real)))
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
