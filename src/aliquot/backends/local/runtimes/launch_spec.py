"""The launch spec: a pod's launch in terms of this machine's folders, uids and groups, which the launcher reads.

It is stored as spec.json in the pod's folder, and a newer platform reads it for pods that it did not start: its keys
must not change.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import aliquot
from aliquot.api import Json
from aliquot.backends.local.runtime import CannotStart, Launch, Volume
from aliquot.backends.local.runtimes import preemption_files, sandbox
from aliquot.backends.local.runtimes.pod_folder import PodFolder
from aliquot.gpu.injection import Injection, preload_text

WORKLOAD = "/workload"
CHECKPOINTS = "/checkpoints"
PREEMPTION_DIR = "/run/aliquot"
POD_VARIABLE = "ALIQUOT_POD"  # in the environment of everything a pod runs
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGE_PARENT = str(Path(aliquot.__file__).resolve().parent.parent)


def isolated_spec(
    launch: Launch, folder: PodFolder, data: Path, owner: int, allowed: tuple[str, ...], checkpoints: Path | None
) -> Json:
    visible = sorted({*_interpreter(), *launch.path_dirs})
    pod_paths = _pod_paths(visible)
    path_dirs = [*launch.injection.path_dirs, *launch.path_dirs]
    path, checkpoint_dir = _visible_path(visible), CHECKPOINTS if checkpoints else ""
    env = _environment(launch, path_dirs, path, pod_paths["home"], PREEMPTION_DIR, checkpoint_dir)
    if checkpoints:
        pod_paths[str(checkpoints)] = CHECKPOINTS
    return {
        "isolated": True,
        "uid": owner,
        "data": str(data),
        "shown": visible,
        "volumes": [_volume(volume, folder, owner, allowed) for volume in launch.volumes],
        "own": pod_paths,
        "cwd": launch.cwd or WORKLOAD,
        "env": {"USER": "root", "LOGNAME": "root"} | env,
    }


def plain_spec(
    launch: Launch, folder: PodFolder, data: Path, allowed: tuple[str, ...], checkpoints: Path | None
) -> Json:
    """Without namespaces: the pod sees the machine as the platform's user does."""
    for volume in launch.volumes:
        _check_plain(volume, allowed)
    work = str(folder.path / "work")
    cwd = launch.cwd or WORKLOAD
    inside = cwd == WORKLOAD or cwd.startswith(WORKLOAD + "/")
    # Nothing can be mounted: injected files are used where they are stored.
    path_dirs = [*(str(folder.injected(path)) for path in launch.injection.path_dirs), *launch.path_dirs]
    path, home = os.environ.get("PATH", _PATH), str(folder.path / "home")
    env = _environment(launch, path_dirs, path, home, str(folder.preemption_dir), str(checkpoints or ""))
    return {
        "isolated": False,
        "uid": os.geteuid(),
        "data": str(data),
        "shown": [],
        "volumes": [],
        "cwd": work + cwd.removeprefix(WORKLOAD) if inside else cwd,
        "env": {"TMPDIR": str(folder.path / "tmp")} | env | dict(launch.injection.fallback_environment),
    }


def inject(injection: Injection, folder: PodFolder) -> list[Json]:
    """Write the injected files; where each is on this machine, and where the pod sees it."""
    mounts = []
    for file in injection.files:
        text = preload_text(_image_text(file.path), file.text) if file.append else file.text
        source = _write_in_place(Path(file.source), text) if file.source else folder.inject(file, text)
        mounts.append({"source": str(source), "place": file.path, "readOnly": True})
    for mount in injection.mounts:
        if mount.create_bytes:
            _create_zeros(Path(mount.source), mount.create_bytes)
        mounts.append({"source": mount.source, "place": mount.path, "readOnly": mount.read_only})
    return mounts


def _image_text(path: str) -> str:
    """Pods use the system files of this machine, so its file stands for the image's."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _write_in_place(path: Path, text: str) -> Path:
    """Write into the same file: a pod that has it mounted would not see a replacement."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(handle, 0o644)
        os.ftruncate(handle, os.pwrite(handle, text.encode(), 0))
    finally:
        os.close(handle)
    return path


def _create_zeros(path: Path, size: int) -> None:
    """Create a file that every process of the pod may write, whatever its uid; others do not reach the folder."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.fchmod(handle, 0o666)
        if os.fstat(handle).st_size != size:  # new, or damaged and of no use
            os.ftruncate(handle, 0)
            os.ftruncate(handle, size)
    finally:
        os.close(handle)


def host_name(name: str) -> str:
    """The pod's name as a host name: at most 63 characters, no dots."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:63].strip("-") or "pod"


def bashrc(launch: Launch, folder: PodFolder, isolated: bool) -> str:
    """The .bashrc that gives an interactive shell its prompt: root@frac03-3-0-0:/workload#"""
    if isolated:
        return "PS1='\\u@\\h:\\w\\$ '\n"
    # The host name is the machine's and the folder's path is long: show both as in an isolated pod.
    work, name = shlex.quote(str(folder.path / "work")), host_name(launch.assignment.name)
    return f"_work={work}\nPS1='\\u@{name}:${{PWD/#$_work/{WORKLOAD}}}\\$ '\n"


def _pod_paths(visible: list[str]) -> dict[str, str]:
    """Where the pod sees its own folders, by folder name.

    Nothing is ever mounted inside them: the job writes there, and could leave a link where we create a mount point. So
    when our Python is below /root or /tmp, the home folder is elsewhere, and /tmp is in memory.
    """
    top_level = {path.split("/")[1] for path in visible}
    paths = {"work": WORKLOAD, "talk": PREEMPTION_DIR, "home": "/home/root" if "root" in top_level else "/root"}
    return paths if "tmp" in top_level else {**paths, "tmp": "/tmp"}  # noqa: S108  # the pod's own


def _environment(
    launch: Launch, path_dirs: list[str], path: str, home: str, preemption_dir: str, checkpoints: str
) -> dict[str, str]:
    """The pod's own variables win, except over those that identify the pod, name the preemption files or lead to
    injected programs."""
    name = host_name(launch.assignment.name)
    defaults = {"LANG": "C.UTF-8", "HOME": home, "HOSTNAME": name, "PATH": path}
    if checkpoints:
        defaults["ALIQUOT_CHECKPOINT_DIR"] = checkpoints
    fixed = {
        "ALIQUOT_PREEMPTION_FILE": f"{preemption_dir}/{preemption_files.NOTICE}",
        "ALIQUOT_SAVED_FILE": f"{preemption_dir}/{preemption_files.SAVED}",
    }
    env = {**defaults, **launch.env, **fixed}
    env["PATH"] = os.pathsep.join([*path_dirs, env["PATH"]])
    if launch.argv[0] == sys.executable and not PACKAGE_PARENT.startswith(sys.prefix):
        env.setdefault("PYTHONPATH", PACKAGE_PARENT)  # the platform runs from a checkout
    return {**env, POD_VARIABLE: launch.assignment.uid}


def _interpreter() -> set[str]:
    """The folders of our Python and our package, by every path that leads to them."""
    paths = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), PACKAGE_PARENT}
    # The targets of links on the way (.venv/bin/python -> python3 -> elsewhere/bin/python3.11) must be visible too.
    link = sys.executable
    while os.path.islink(link):
        link = os.path.join(os.path.dirname(link), os.readlink(link))
        paths.add(os.path.dirname(os.path.dirname(os.path.abspath(link))))
    resolved = {os.path.abspath(path) for path in paths} | {os.path.realpath(path) for path in paths}
    return {path for path in resolved if path != "/"}


def _visible_path(visible: list[str]) -> str:
    """The PATH of a pod: the folders of our own PATH that exist in a pod, then the usual ones."""
    roots = (*sandbox.SYSTEM, *visible)
    own = [
        entry
        for entry in os.environ.get("PATH", "").split(os.pathsep)
        if entry.startswith("/") and any(entry == root or entry.startswith(root + "/") for root in roots)
    ]
    return os.pathsep.join(dict.fromkeys([*own, *_PATH.split(os.pathsep)]))


def _volume(volume: Volume, folder: PodFolder, owner: int, allowed: tuple[str, ...]) -> Json:
    if volume.kind == "memory":
        return {"kind": "memory", "place": volume.mount_path, "size": volume.size}
    if volume.kind == "folder":
        source = str(folder.volume(volume.name, owner))
        within = [source]
    else:
        source, within = volume.source, [os.path.realpath(path) for path in allowed]
        _check_host_path(volume, allowed)
    return {
        "kind": "bind",
        "host": volume.kind == "host",
        "place": volume.mount_path,
        "source": source,
        "within": within,
        "readOnly": volume.read_only,
    }


def _check_host_path(volume: Volume, allowed: tuple[str, ...]) -> None:
    real = os.path.realpath(volume.source)
    if not any(_inside(real, os.path.realpath(path)) for path in allowed):
        listed = ", ".join(allowed) or "none"
        raise CannotStart("FailedMount", f"pods may not mount {volume.source} of this machine (allowed: {listed})")
    if not os.path.exists(real):
        raise CannotStart("FailedMount", f"{volume.source} does not exist on this machine")


def _check_plain(volume: Volume, allowed: tuple[str, ...]) -> None:
    if volume.kind == "memory" and volume.mount_path == "/dev/shm":  # noqa: S108  # the machine's own will do
        return
    if volume.kind == "host":
        _check_host_path(volume, allowed)
        if os.path.normpath(volume.source) == os.path.normpath(volume.mount_path):
            return
    raise CannotStart(
        "FailedMount", f"nothing can be mounted at {volume.mount_path}: that needs a platform that was started as root"
    )


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
