"""NVIDIA's Multi-Process Service, for jobs that ask for it: kernels of several jobs run on a GPU at the same time.

One daemon per GPU, started with the first job that asks for it there and stopped with the last. MPS shares compute
only: memory limits are enforced as everywhere else. The users of a daemon are recorded on disk, so the daemon survives
a restart of the platform, which then knows when to stop it. A fault of one job ends the other MPS jobs on the GPU.

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
_TIMEOUT_SECONDS = 20.0
_MAX_SOCKET_PATH = 107  # bytes; the kernel's limit


class MpsDaemons:
    def __init__(self, folder: Path, allowed: bool) -> None:
        self._folder = folder
        self._allowed = allowed
        # Pods start and end in several threads: a daemon must not be stopped while another pod joins it.
        self._lock = threading.Lock()

    def join(self, uuid: str, pod_uid: str) -> Path:
        """Start the GPU's daemon if needed; the folder by which the pod reaches it. `CannotStart`."""
        check_allowed(self._allowed)
        if shutil.which(PROGRAM) is None:
            raise CannotStart("MPSUnavailable", f"it asks for MPS (--mps), and this machine has no {PROGRAM}")
        with self._lock:
            return self._join(self._folder / os.path.basename(uuid), uuid, pod_uid)

    def _join(self, gpu_dir: Path, uuid: str, pod_uid: str) -> Path:
        for name in ("pods", "pipe", "log"):
            (gpu_dir / name).mkdir(parents=True, exist_ok=True)
        # The MPS server of a pod runs as the pod's user, and finds the daemon by this path.
        modes = {self._folder: 0o711, gpu_dir: 0o711, gpu_dir / "pods": 0o700, gpu_dir / "pipe": 0o755}
        for path, mode in modes.items():
            path.chmod(mode)
        # The pod's file first: if we are killed in between, the daemon has a user and is stopped with it.
        (gpu_dir / "pods" / os.path.basename(pod_uid)).touch()
        if not _is_running(gpu_dir):
            _start(gpu_dir, uuid)
        return gpu_dir / "pipe"

    def leave(self, pod_uid: str) -> None:
        """Stop the daemons that this pod was the last to use."""
        with self._lock:
            for gpu_dir in self._gpu_dirs():
                pod_file = gpu_dir / "pods" / os.path.basename(pod_uid)
                if pod_file.exists():
                    pod_file.unlink()
                    _stop_unused(gpu_dir)

    def sweep(self, live_pods: Container[str]) -> None:
        """After the platform was killed: drop pods that are not live, and stop daemons without pods."""
        with self._lock:
            for gpu_dir in self._gpu_dirs():
                for pod_file in list((gpu_dir / "pods").iterdir()) if (gpu_dir / "pods").is_dir() else []:
                    if pod_file.name not in live_pods:
                        pod_file.unlink()
                _stop_unused(gpu_dir)

    def _gpu_dirs(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []


def check_allowed(allowed: bool) -> None:
    if not allowed:
        message = "it asks for MPS (--mps), which is switched off here: `aliquot up --gpu-mps` switches it on"
        raise CannotStart("MPSUnavailable", message)


def _is_running(gpu_dir: Path) -> bool:
    """Only a running daemon answers."""
    return _command(gpu_dir, "get_server_list").returncode == 0


def _start(gpu_dir: Path, uuid: str) -> None:
    done = _control(gpu_dir, "-d", CUDA_VISIBLE_DEVICES=uuid)
    if done.returncode or not _is_running(gpu_dir):
        reason = " ".join((done.stderr or done.stdout).split()) or _no_reason(gpu_dir)
        raise CannotStart("MPSUnavailable", f"{PROGRAM} did not start on {uuid}: {reason}")


def _no_reason(gpu_dir: Path) -> str:
    if len(os.fsencode(gpu_dir / "pipe" / "control_privileged")) > _MAX_SOCKET_PATH:
        return f"{gpu_dir} is too long a path for its sockets; use a shorter --data-dir"
    return "it gave no reason"


def _stop_unused(gpu_dir: Path) -> None:
    pods = gpu_dir / "pods"
    if pods.is_dir() and any(pods.iterdir()):
        return
    if _is_running(gpu_dir):
        _command(gpu_dir, "quit")
    shutil.rmtree(gpu_dir, ignore_errors=True)


def _command(gpu_dir: Path, command: str) -> subprocess.CompletedProcess[str]:
    return _control(gpu_dir, command=command)


def _control(gpu_dir: Path, *arguments: str, command: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    folders = {"CUDA_MPS_PIPE_DIRECTORY": str(gpu_dir / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(gpu_dir / "log")}
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            [PROGRAM, *arguments],
            input=command + "\n",
            env={**os.environ, **folders, **env},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    return subprocess.CompletedProcess(PROGRAM, 1, "", f"no answer within {_TIMEOUT_SECONDS:g} s")
