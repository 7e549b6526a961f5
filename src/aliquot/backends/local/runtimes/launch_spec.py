"""What the launcher is told: a pod's launch, in terms of this machine's folders, uids and groups."""

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
TALK = "/run/aliquot"
POD_VARIABLE = "ALIQUOT_POD"  # in the environment of everything a pod runs
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGE_PARENT = str(Path(aliquot.__file__).resolve().parent.parent)


def isolated_orders(
    launch: Launch, folder: PodFolder, data: Path, owner: int, allowed: tuple[str, ...], checkpoints: Path | None
) -> Json:
    shown = sorted({*_interpreter(), *launch.path_dirs})
    own = _places(shown)
    first = [*launch.injection.path_dirs, *launch.path_dirs]
    env = _environment(launch, first, _visible_path(shown), own["home"], TALK, CHECKPOINTS if checkpoints else "")
    if checkpoints:
        own[str(checkpoints)] = CHECKPOINTS
    return {
        "isolated": True,
        "uid": owner,
        "data": str(data),
        "shown": shown,
        "volumes": [_volume(volume, folder, owner, allowed) for volume in launch.volumes],
        "own": own,
        "cwd": launch.cwd or WORKLOAD,
        "env": {"USER": "root", "LOGNAME": "root"} | env,
    }


def plain_orders(
    launch: Launch, folder: PodFolder, data: Path, allowed: tuple[str, ...], checkpoints: Path | None
) -> Json:
    """Without namespaces: the pod sees the machine as its user does."""
    for volume in launch.volumes:
        _check_plain(volume, allowed)
    work = str(folder.path / "work")
    cwd = launch.cwd or WORKLOAD
    inside = cwd == WORKLOAD or cwd.startswith(WORKLOAD + "/")
    # Nothing can be mounted: what we bring along is where we keep it.
    first = [*(str(folder.injected(place)) for place in launch.injection.path_dirs), *launch.path_dirs]
    path, home = os.environ.get("PATH", _PATH), str(folder.path / "home")
    env = _environment(launch, first, path, home, str(folder.talk), str(checkpoints or ""))
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
    """Write what is injected; where each file is on this machine, and where the pod sees it."""
    found = []
    for file in injection.files:
        text = preload_text(_own_text(file.path), file.text) if file.append else file.text
        source = _in_place(Path(file.source), text) if file.source else folder.inject(file, text)
        found.append({"source": str(source), "place": file.path, "readOnly": True})
    for mount in injection.mounts:
        if mount.create_bytes:
            _zeros(Path(mount.source), mount.create_bytes)
        found.append({"source": mount.source, "place": mount.path, "readOnly": mount.read_only})
    return found


def _own_text(place: str) -> str:
    """Pods have the system of this machine, so its file is theirs."""
    try:
        return Path(place).read_text()
    except OSError:
        return ""


def _in_place(path: Path, text: str) -> Path:
    """Into the same file: a pod that has it mounted would not see another one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(handle, 0o644)
        os.ftruncate(handle, os.pwrite(handle, text.encode(), 0))
    finally:
        os.close(handle)
    return path


def _zeros(path: Path, size: int) -> None:
    """For every process of the pod to write, whatever its uid; others do not reach the folder."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.fchmod(handle, 0o666)
        if os.fstat(handle).st_size != size:  # new, or damaged: nothing of it can be used
            os.ftruncate(handle, 0)
            os.ftruncate(handle, size)
    finally:
        os.close(handle)


def host_name(name: str) -> str:
    """The pod's name as a host name: at most 63 characters, no dots."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:63].strip("-") or "pod"


def bashrc(launch: Launch, folder: PodFolder, isolated: bool) -> str:
    """Gives an interactive shell its prompt: root@frac03-3-0-0:/workload#"""
    if isolated:
        return "PS1='\\u@\\h:\\w\\$ '\n"
    # The host name is the machine's and the folder is long: show both as they are in a pod of their own.
    work, name = shlex.quote(str(folder.path / "work")), host_name(launch.assignment.name)
    return f"_work={work}\nPS1='\\u@{name}:${{PWD/#$_work/{WORKLOAD}}}\\$ '\n"


def _places(shown: list[str]) -> dict[str, str]:
    """Where the pod's own folders are.

    Nothing is ever mounted inside them: the job writes there, and could leave a link where we make a mount point. So
    when our Python lies below /root or /tmp, home is elsewhere, and /tmp is in memory.
    """
    below = {place.split("/")[1] for place in shown}
    places = {"work": WORKLOAD, "talk": TALK, "home": "/home/root" if "root" in below else "/root"}
    return places if "tmp" in below else {**places, "tmp": "/tmp"}  # noqa: S108  # the pod's own


def _environment(
    launch: Launch, first: list[str], path: str, home: str, files: str, checkpoints: str
) -> dict[str, str]:
    """The pod's own variables win, but for those that tell it apart, that lead to its devices' programs, or that name
    the files by which it and the platform talk: these cannot be elsewhere."""
    name = host_name(launch.assignment.name)
    lasting = {"ALIQUOT_CHECKPOINT_DIR": checkpoints} if checkpoints else {}
    told = {
        "ALIQUOT_PREEMPTION_FILE": f"{files}/{preemption_files.NOTICE}",
        "ALIQUOT_SAVED_FILE": f"{files}/{preemption_files.SAVED}",
    }
    env = {"LANG": "C.UTF-8", "HOME": home, "HOSTNAME": name, "PATH": path, **lasting, **launch.env, **told}
    env["PATH"] = os.pathsep.join([*first, env["PATH"]])
    if launch.argv[0] == sys.executable and not PACKAGE_PARENT.startswith(sys.prefix):
        env.setdefault("PYTHONPATH", PACKAGE_PARENT)  # the platform runs from a checkout
    return {**env, POD_VARIABLE: launch.assignment.uid}


def _interpreter() -> set[str]:
    """Where our Python and our package are, by every name they have."""
    places = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), PACKAGE_PARENT}
    # The links on the way (.venv/bin/python -> python3 -> elsewhere/bin/python3.11) must lead somewhere too.
    link = sys.executable
    while os.path.islink(link):
        link = os.path.join(os.path.dirname(link), os.readlink(link))
        places.add(os.path.dirname(os.path.dirname(os.path.abspath(link))))
    named = {os.path.abspath(place) for place in places} | {os.path.realpath(place) for place in places}
    return {place for place in named if place != "/"}


def _visible_path(shown: list[str]) -> str:
    """The usual places, and those of our own PATH that exist in a pod."""
    roots = (*sandbox.SYSTEM, *shown)
    ours = [
        entry
        for entry in os.environ.get("PATH", "").split(os.pathsep)
        if entry.startswith("/") and any(entry == root or entry.startswith(root + "/") for root in roots)
    ]
    return os.pathsep.join(dict.fromkeys([*ours, *_PATH.split(os.pathsep)]))


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
        said = ", ".join(allowed) or "none"
        raise CannotStart("FailedMount", f"pods may not mount {volume.source} of this machine (allowed: {said})")
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
