"""Container images for test nodes, built here: no registry can be reached, and a few files are enough.

An image is a tar in the format of `docker save`: one layer, its configuration, and its names. A node loads it
(`RealNode.load`), or pulls it from the registry (registry.py).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = "registry.k8s.io/pause:3.10"
BUSYBOX = "busybox"
# Images that users' examples name. All of them run for ever, print a step per second, and have a shell called bash.
JOBS = ("gcr.io/run-ai-demo/quickstart", "ubuntu", "python", "pytorch", "pytorch/pytorch", "tensorflow/tensorflow")
# These serve a page on the same port as the real ones.
NOTEBOOKS = ("jupyter/base-notebook", "jupyter/scipy-notebook")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())

# The pause container of every pod: it holds the pod's namespaces and reaps its orphans.
PAUSE_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void leave(int number) { (void)number; _exit(0); }
static void bury(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0); }
int main(void) {
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    signal(SIGCHLD, bury);
    for (;;) pause();
}
"""
BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'
JOB = b"""#!/bin/sh
[ $# -eq 0 ] || exec "$@"
trap 'exit 143' TERM
step=0
while :; do
  step=$((step + 1))
  echo "step $step"
  sleep 1 & wait
done
"""
NOTEBOOK = b"""#!/bin/sh
[ $# -eq 0 ] || exec "$@"
httpd -f -p 8888 -h /www &
trap 'exit 143' TERM
wait
"""


class Link(str):
    """The target of a symbolic link in an image."""


# The content of a file in an image.
Source = Path | bytes | Link


def image(
    target: Path,
    names: str | Sequence[str],
    files: Mapping[str, Source],
    entrypoint: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Writes an image to `target` and returns that path. `files` are paths in the image; all are executable.

    A name without a tag means `:latest`.
    """
    names = [names] if isinstance(names, str) else names
    layer = _layer(files)
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(environment or {})}
    config = _json(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": [f"{key}={value}" for key, value in settings.items()]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    )
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    tags = [name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in names]
    manifest = _json([{"Config": config_name, "RepoTags": tags, "Layers": ["layer.tar"]}])
    with tarfile.open(target, "w") as tar:
        for name, data in ((config_name, config), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(tar, name, data)
    return target


def pause_image(folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        source, program = Path(scratch, "pause.c"), Path(scratch, "pause")
        source.write_text(PAUSE_SOURCE)
        subprocess.run(["cc", "-Os", "-static", "-s", "-o", program, source], check=True, timeout=120)
        return image(folder / "pause.tar", PAUSE, {"pause": program}, ["/pause"])


def busybox_images(folder: Path) -> list[Path]:
    """A shell, and stand-ins for the images of users' jobs."""
    files = busybox()
    job = {**files, "bin/job": JOB}
    notebook = {**files, "bin/notebook": NOTEBOOK, "www/index.html": b"a notebook\n"}
    return [
        image(folder / "busybox.tar", BUSYBOX, files, ["/bin/sh"]),
        image(folder / "jobs.tar", JOBS, job, ["/bin/job"]),
        image(folder / "notebooks.tar", NOTEBOOKS, notebook, ["/bin/notebook"]),
    ]


def busybox() -> dict[str, Source]:
    """The files of a small system, as a base for other images."""
    program = Path(shutil.which("busybox") or "/bin/busybox")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout
    links: dict[str, Source] = {f"bin/{name}": Link("busybox") for name in listed.split() if name != "busybox"}
    return {**links, **with_libraries(program), "bin/busybox": program, "bin/bash": BASH, "tmp/.keep": b""}


def with_libraries(program: Path) -> dict[str, Source]:
    """A program of this machine and the shared libraries it needs, at the same paths."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, timeout=60).stdout
    libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    return {path.lstrip("/"): Path(path).resolve() for path in (str(program), *libraries)}


def _layer(files: Mapping[str, Source]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, source in sorted(files.items()):
            match source:
                case Path():
                    _add(tar, name, source.read_bytes())
                case bytes():
                    _add(tar, name, source)
                case Link():
                    entry = tarfile.TarInfo(name)
                    entry.type, entry.linkname = tarfile.SYMTYPE, str(source)
                    tar.addfile(entry)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    tar.addfile(entry, io.BytesIO(data))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
