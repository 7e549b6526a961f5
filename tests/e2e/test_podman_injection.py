"""The injection is data: a plain `podman run` carries it out as well as our own runtime, with the stand-in driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aliquot import native
from aliquot.api import DeviceShare
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.devices.share_dirs import ShareDirs
from aliquot.backends.local.runtimes import launch_spec
from aliquot.backends.local.runtimes.pod_folder import PodFolder
from aliquot.gpu.fractions import SharingOptions
from aliquot.gpu.injection import LEDGER, LIBRARY, LIMITS, PRELOAD, Injection, preload_text
from native.rig import CONTEXT
from support.crash.disk import need
from support.gpus import NODE, FakeDriver, card
from support.gpus.fake_driver import CARD_MIB, DRIVER_PATH, UUIDS, FakeDriverFiles, install_fake_driver
from support.pods.agent_harness import needs_root

pytestmark = [needs_root, pytest.mark.xdist_group("podman")]
OWN_PRELOAD = "# the image's own\n"
FILL = """
cuda = Cuda()
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
print_line(2 * len(frees), code, cuda.total() // MIB, cuda.info()[0] // MIB)
"""
# Keeps what it has until its input ends.
HOLD = FILL + "import sys; sys.stdin.read()\n"


@dataclass
class Engine:
    """Podman on a folder of its own. There is no image: a container's root is made of the machine's /usr."""

    folder: Path
    # Podman takes no longer path than 50 characters.
    short: Path

    def root(self, name: str) -> Path:
        """A root file system, with a preload file of the image's own."""
        made = self.folder / name
        for folder in ("usr", "etc", "proc", "sys", "dev", "run", "tmp"):
            (made / folder).mkdir(parents=True)
        for link in ("bin", "sbin", "lib", "lib32", "lib64"):
            if os.path.islink(f"/{link}"):
                (made / link).symlink_to(os.readlink(f"/{link}"))
        shutil.copy("/etc/ld.so.cache", made / "etc")
        (made / "etc" / "ld.so.preload").write_text(OWN_PRELOAD)
        return made

    def command(self, name: str, flags: list[str], *argv: str) -> list[str]:
        # Ulimits: podman asks for more than a root without CAP_SYS_RESOURCE may have.
        alone = ["--network=none", "--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        python = [f"--volume={place}:{place}:ro" for place in ("/usr", sys.base_prefix) if not _below_usr(place)]
        run = ["run", "--rm", "-i", "--name", name, *alone, *python, *flags, "--rootfs", str(self.root(name)), *argv]
        return self._podman(*run)

    def clean(self) -> None:
        """Whatever a test that failed has left running."""
        subprocess.run(self._podman("rm", "--all", "--force", "--time=0"), capture_output=True, timeout=60, check=False)

    def _podman(self, *words: str) -> list[str]:
        state = ["--root", str(self.folder / "store"), "--runroot", str(self.short), "--storage-driver=vfs"]
        return [*_WITHOUT_HYBRID_CGROUPS, "podman", *state, *words]


# crun refuses to run beside both versions of control groups at once, even when told to make none.
_WITHOUT_HYBRID_CGROUPS = [
    "unshare", "--mount", "sh", "-c",
    "if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi; exec \"$@\"", "sh",
]  # fmt: skip


def _below_usr(place: str) -> bool:
    return place.startswith("/usr/")


@dataclass
class Containers:
    engine: Engine
    devices: RealDevices
    machine: FakeDriverFiles

    def flags(self, name: str, milli: int) -> list[str]:
        """What a container with a part of the first card is given, each thing as a flag."""
        injection = self.devices.injection(NODE, [DeviceShare(index=0, milli=milli)], SharingOptions(), name)
        environment = {**injection.environment, **self.machine.environment()}
        return [
            *_flags(injection, PodFolder(self.engine.folder / f"{name}-files")),
            *(f"--env={key}={value}" for key, value in environment.items()),
            f"--volume={self.machine.folder}:{DRIVER_PATH}",
        ]

    def sh(self, name: str, script: str, milli: int = 500) -> str:
        command = self.engine.command(name, self.flags(name, milli), "sh", "-c", script)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, program: str, milli: int) -> subprocess.Popen[str]:
        python = [str(Path(sys.executable).resolve()), "-c", "from cu import *\n" + program]
        command = self.engine.command(name, self.flags(name, milli), *python)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def runs(self, name: str, program: str, milli: int = 500) -> list[str]:
        process = self.start(name, program, milli)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out.split()


def _flags(injection: Injection, folder: PodFolder) -> list[str]:
    """The whole translation. What our own runtime would mount is mounted by podman."""
    merged = [
        replace(file, text=preload_text(OWN_PRELOAD, file.text), append=False)
        for file in injection.files
        if file.append
    ]
    kept = [file for file in injection.files if not file.append]
    mounts = launch_spec.inject(replace(injection, files=(*merged, *kept)), folder)
    volumes = [f"--volume={mount['source']}:{mount['place']}:{'ro' if mount['readOnly'] else 'rw'}" for mount in mounts]
    return [*volumes, *(f"--device={path}" for path in injection.devices if os.path.exists(path))]


@pytest.fixture
def containers(native_build: Path, tmp_path: Path) -> Iterator[Containers]:
    need(shutil.which("podman") is not None, "install podman (tools/packages.sh)")
    library = native.library()
    need(library is not None, "build the sharing library (make native)")
    # A device file that only this test has: to programs it is /dev/zero.
    subprocess.run(["mknod", "-m", "666", str(tmp_path / "nvidia7"), "c", "1", "5"], check=True, timeout=60)
    first = replace(card(0, UUIDS[0], "Fake 16GB", CARD_MIB), device_file=str(tmp_path / "nvidia7"))
    other = replace(card(1, UUIDS[1], "Fake 16GB", CARD_MIB), device_file=str(tmp_path / "nvidia8"))
    share_dirs, contexts = ShareDirs(tmp_path / "share_dirs"), ContextSizes(tmp_path / "contexts.json")
    devices = RealDevices(NODE, FakeDriver((first, other)), share_dirs, contexts, library)
    with tempfile.TemporaryDirectory(prefix="aliquot-") as short:
        engine = Engine(tmp_path / "podman", Path(short))
        yield Containers(engine, devices, install_fake_driver(native_build, tmp_path / "fake-driver"))
        engine.clean()


def test_everything_injected_is_there(containers: Containers, tmp_path: Path) -> None:
    """Library, preload file, limits, ledger, device file and variables, each as the injection says."""
    script = f"""
        cat {PRELOAD}; grep '^gpu ' {LIMITS}; stat -c '%s %a' {LEDGER}; stat -c %F {tmp_path}/nvidia7
        echo $NVIDIA_VISIBLE_DEVICES $NVIDIA_DRIVER_CAPABILITIES $RUNAI_NUM_OF_GPUS
        env -i grep -c {LIBRARY} /proc/self/maps >/dev/null && echo fenced
        for file in {LIBRARY} {PRELOAD} {LIMITS}; do (echo mine >> $file) 2>/dev/null && echo written $file; done
        umount {PRELOAD} 2>/dev/null && echo unmounted
        ls {tmp_path}
    """
    own, preload, limits, *rest = containers.sh("all", script).splitlines()

    assert [own + "\n", preload] == [OWN_PRELOAD, LIBRARY]
    assert re.match(rf"gpu {UUIDS[0]} limit={8192 << 20} .*weight=500 ", limits)
    assert rest == ["131072 666", "character special file", f"{UUIDS[0]} compute,utility 0.5", "fenced", "nvidia7"]


def test_a_container_has_its_slice_and_no_byte_more(containers: Containers) -> None:
    """A greedy program in the container gets half of the card but its context, then the driver's own error."""
    assert containers.runs("greedy", FILL) == [str(8192 - CONTEXT), "2", "8192", "0"]


def test_a_second_container_has_a_slice_of_its_own(containers: Containers) -> None:
    """While one is full, another with a quarter of the same card sees and gets its whole quarter."""
    first = containers.start("first", HOLD, 500)
    assert first.stdout is not None
    assert first.stdout.readline().split() == [str(8192 - CONTEXT), "2", "8192", "0"]

    assert containers.runs("second", FILL, 250) == [str(4096 - CONTEXT), "2", "4096", "0"]

    first.communicate(timeout=60)
    assert first.returncode == 0
