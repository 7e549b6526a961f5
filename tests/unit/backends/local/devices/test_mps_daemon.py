"""NVIDIA's Multi-Process Service, with a fake control program: when the daemon is started and stopped."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.mps import PROGRAM
from aliquot.backends.local.devices.share_dirs import open_share_dirs
from aliquot.backends.local.devices.simulated import SimulatedDevices
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.backends.local.runtime import CannotStart
from aliquot.gpu.fractions import ComputeMode, SharingOptions
from aliquot.gpu.injection import MPS, Injection
from support.gpus import NODE, ONE, TWO, FakeDriver, node_of

ON = GpuSettings(mps=True)
# Like the real one: `-d` starts a daemon, stdin has a command for it, and without a daemon commands fail.
CONTROL = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $*" >> "$MPS_CALLS"
control="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -d ]; then
    [ -e "$MPS_BROKEN" ] && { cat "$MPS_BROKEN" >&2; exit 1; }
    exec touch "$control"
fi
[ -e "$control" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
read -r word
[ "$word" != quit ] || rm "$control"
"""


class Machine:
    def __init__(self, folder: Path, settings: GpuSettings = ON) -> None:
        self.folder = folder
        self.devices = node_of(folder, FakeDriver((ONE, TWO)), settings=settings)

    def start_pod(self, uid: str, *gpus: int, milli: int = 250) -> Injection:
        shares = [DeviceShare(index=index, milli=milli) for index in gpus or (0,)]
        return self.devices.injection(NODE, shares, SharingOptions(mode=ComputeMode.MPS), uid)

    def daemons(self) -> list[str]:
        """The GPUs that have a daemon."""
        return sorted(path.parents[1].name for path in (self.folder / "share_dirs" / "mps").rglob("control"))

    def started(self) -> list[str]:
        calls = self.folder / "calls"
        return [line.split()[0] for line in calls.read_text().splitlines() if line.endswith(" -d")]


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / PROGRAM).write_text(CONTROL)
    (programs / PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("MPS_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("MPS_BROKEN", str(tmp_path / "broken"))
    return programs / PROGRAM


def test_servers_of_pods_reach_the_daemon(control: Path, tmp_path: Path) -> None:
    """MPS servers run as the users of pods, and reach the daemon by its path on the machine."""
    machine = Machine(tmp_path)
    machine.start_pod("a")

    (pipe,) = (tmp_path / "share_dirs" / "mps").rglob("pipe")

    folders = [path for path in (pipe, *pipe.parents) if tmp_path in path.parents]
    assert all(path.stat().st_mode & 0o001 for path in folders)


def test_a_pod_that_asks_for_it(control: Path, tmp_path: Path) -> None:
    """It can reach the daemon of its GPU, gets its share of compute, and its memory is limited as usual."""
    injection = Machine(tmp_path).start_pod("pod-1")

    assert injection.environment["CUDA_MPS_PIPE_DIRECTORY"] == MPS
    assert injection.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    (pipe,) = (mount for mount in injection.mounts if mount.path == MPS)
    assert (Path(pipe.source) / "control").exists()
    assert injection.requires_library
    assert "\nmode timesharing\n" in injection.files[1].text


def test_one_daemon_for_each_gpu(control: Path, tmp_path: Path) -> None:
    """The first pod on a GPU starts the daemon, the last one stops it; other GPUs have their own."""
    machine = Machine(tmp_path)
    for uid, gpu in (("pod-1", 0), ("pod-2", 0), ("pod-3", 1)):
        machine.start_pod(uid, gpu)
    assert (machine.daemons(), machine.started()) == (["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"])

    machine.devices.release("pod-1")
    assert machine.daemons() == ["GPU-a", "GPU-b"]
    machine.devices.release("pod-2")

    assert machine.daemons() == ["GPU-b"]


def test_a_daemon_outlives_the_platform(control: Path, tmp_path: Path) -> None:
    """The next platform uses the same daemon, and stops it when its last pod has ended meanwhile."""
    Machine(tmp_path).start_pod("pod-1")
    again = Machine(tmp_path)
    again.devices.sweep({"pod-1"})
    again.start_pod("pod-1")
    assert (again.daemons(), again.started()) == (["GPU-a"], ["GPU-a"])

    Machine(tmp_path).devices.sweep(frozenset())

    assert again.daemons() == []


def test_mps_is_off_by_default(control: Path, tmp_path: Path) -> None:
    """A pod that asks for it is not started, and the message names the setting."""
    with pytest.raises(CannotStart, match="`aliquot up --gpu-mps` switches it on") as caught:
        Machine(tmp_path, GpuSettings()).start_pod("pod-1")

    assert caught.value.reason == "MPSUnavailable"


def test_a_machine_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the control program is missing, a pod that asks for MPS is not started; the message names the program."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CannotStart, match=f"this machine has no {PROGRAM}"):
        Machine(tmp_path).start_pod("pod-1")


def test_a_daemon_that_does_not_start(control: Path, tmp_path: Path) -> None:
    """The message has the daemon's reason; its folder is removed with the pod."""
    (tmp_path / "broken").write_text("Cannot find a GPU\n")
    machine = Machine(tmp_path)

    with pytest.raises(CannotStart, match="did not start on GPU-a: Cannot find a GPU"):
        machine.start_pod("pod-1")

    machine.devices.release("pod-1")
    assert not (tmp_path / "share_dirs" / "mps" / "GPU-a").exists()


def test_sockets_need_a_short_path(control: Path, tmp_path: Path) -> None:
    """A path that is too long is named: the control program gives no reason. In /dev/shm no path is too long."""
    (tmp_path / "broken").touch()
    folder = tmp_path / ("x" * 60)
    folder.mkdir()

    with pytest.raises(CannotStart, match="is too long a path for its sockets; use a shorter --data-dir"):
        Machine(folder).start_pod("pod-1")

    share_dirs = open_share_dirs(tmp_path / ("y" * 200))
    share_dirs.folder.rmdir()
    assert len(str(share_dirs.folder / "mps" / f"GPU-{uuid4()}" / "pipe" / "control_privileged")) < 108


def test_only_on_one_gpu(control: Path, tmp_path: Path) -> None:
    """A pod can use one daemon, so it cannot have fractions of several GPUs under MPS."""
    with pytest.raises(CannotStart, match="on several GPUs"):
        Machine(tmp_path).start_pod("pod-1", 0, 1)


def test_on_simulated_gpus(tmp_path: Path) -> None:
    """The same rule and the same share apply, without a daemon."""
    (facts,) = node_of(tmp_path).nodes()
    shares = [DeviceShare(index=0, milli=250)]
    options = SharingOptions(mode=ComputeMode.MPS)

    environment = SimulatedDevices([facts], ON).injection(NODE, shares, options, "pod-1").environment
    with pytest.raises(CannotStart, match="--gpu-mps"):
        SimulatedDevices([facts]).injection(NODE, shares, options, "pod-1")

    assert (environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], environment["ALIQUOT_SIMULATED"]) == ("25", "true")
