"""NVIDIA's Multi-Process Service, for jobs that ask for it: kernels of several jobs run on a GPU at the same time.

One daemon per card, started with the first job that asks for it there and stopped with the last. It shares compute
only: memory is kept as everywhere else. Who uses a card is on the disk, so the daemon outlives the platform, and the
next one knows when it may go. A fault of one job on the card ends the others that use the service there.

    <folder>/<GPU UUID>/pods/<uid>   one empty file for each pod
                        pipe, log    the daemon's own
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from aliquot.backends.local.runtime import CannotStart

PROGRAM = "nvidia-cuda-mps-control"
_SECONDS = 20.0
_LONGEST_SOCKET = 107  # letters of a socket's path; the kernel's limit


class MpsDaemons:
    def __init__(self, folder: Path, allowed: bool) -> None:
        self._folder = folder
        self._allowed = allowed
        # Pods come and go in several threads; nobody's daemon may go while another counts on it.
        self._lock = threading.Lock()

    def join(self, uuid: str, pod_uid: str) -> Path:
        """The folder by which a pod reaches the daemon of a card, which runs from now on; or `CannotStart`."""
        check_allowed(self._allowed)
        if shutil.which(PROGRAM) is None:
            raise CannotStart("MPSUnavailable", f"it asks for MPS (--mps), and this machine has no {PROGRAM}")
        with self._lock:
            return self._join(self._folder / os.path.basename(uuid), uuid, pod_uid)

    def _join(self, card: Path, uuid: str, pod_uid: str) -> Path:
        for name in ("pods", "pipe", "log"):
            (card / name).mkdir(parents=True, exist_ok=True)
        # The server of a pod runs as the pod's user, and finds the daemon by this path.
        for place, mode in ((self._folder, 0o711), (card, 0o711), (card / "pods", 0o700), (card / "pipe", 0o755)):
            place.chmod(mode)
        # The pod first: whoever is killed in between finds a daemon with a user, never one that nobody stops.
        (card / "pods" / os.path.basename(pod_uid)).touch()
        if not _runs(card):
            _start(card, uuid)
        return card / "pipe"

    def leave(self, pod_uid: str) -> None:
        with self._lock:
            for card in self._cards():
                pod = card / "pods" / os.path.basename(pod_uid)
                if pod.exists():
                    pod.unlink()
                    _stop_unused(card)

    def sweep(self, living: Container[str]) -> None:
        """What a platform that was killed has left: pods that are gone, and daemons without any."""
        with self._lock:
            for card in self._cards():
                for pod in list((card / "pods").iterdir()) if (card / "pods").is_dir() else []:
                    if pod.name not in living:
                        pod.unlink()
                _stop_unused(card)

    def _cards(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []


def check_allowed(allowed: bool) -> None:
    if not allowed:
        said = "it asks for MPS (--mps), which is switched off here: `aliquot up --gpu-mps` switches it on"
        raise CannotStart("MPSUnavailable", said)


def _runs(card: Path) -> bool:
    """Only a daemon that runs answers."""
    return _told(card, "get_server_list").returncode == 0


def _start(card: Path, uuid: str) -> None:
    done = _control(card, "-d", CUDA_VISIBLE_DEVICES=uuid)
    if done.returncode or not _runs(card):
        said = " ".join((done.stderr or done.stdout).split()) or _no_reason(card)
        raise CannotStart("MPSUnavailable", f"{PROGRAM} did not start on {uuid}: {said}")


def _no_reason(card: Path) -> str:
    if len(os.fsencode(card / "pipe" / "control_privileged")) > _LONGEST_SOCKET:
        return f"{card} is too long a path for its sockets; use a shorter --data-dir"
    return "it gave no reason"


def _stop_unused(card: Path) -> None:
    pods = card / "pods"
    if pods.is_dir() and any(pods.iterdir()):
        return
    if _runs(card):
        _told(card, "quit")
    shutil.rmtree(card, ignore_errors=True)


def _told(card: Path, word: str) -> subprocess.CompletedProcess[str]:
    return _control(card, told=word)


def _control(card: Path, *arguments: str, told: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(card / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(card / "log")}
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            [PROGRAM, *arguments],
            input=told + "\n",
            env={**os.environ, **places, **env},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    return subprocess.CompletedProcess(PROGRAM, 1, "", f"no answer within {_SECONDS:g} s")
