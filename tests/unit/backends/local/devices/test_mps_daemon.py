"""NVIDIA's Multi-Process Service, with a stand-in for its control program: who starts it, and who stops it."""

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
# As the real one: `-d` starts a daemon, words on standard input are told to it, without one they fail.
CONTROL = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $*" >> "$MPS_SAID"
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

    def starts(self, uid: str, *cards: int, milli: int = 250) -> Injection:
        shares = [DeviceShare(index=card, milli=milli) for card in cards or (0,)]
        return self.devices.injection(NODE, shares, SharingOptions(mode=ComputeMode.MPS), uid)

    def daemons(self) -> list[str]:
        """The cards that have one."""
        return sorted(path.parents[1].name for path in (self.folder / "share_dirs" / "mps").rglob("control"))

    def started(self) -> list[str]:
        said = self.folder / "said"
        return [line.split()[0] for line in said.read_text().splitlines() if line.endswith(" -d")]


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / PROGRAM).write_text(CONTROL)
    (programs / PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("MPS_SAID", str(tmp_path / "said"))
    monkeypatch.setenv("MPS_BROKEN", str(tmp_path / "broken"))
    return programs / PROGRAM


def test_servers_of_pods_reach_the_daemon(control: Path, tmp_path: Path) -> None:
    """They run as the users of pods, and go by the path on the machine."""
    machine = Machine(tmp_path)
    machine.starts("a")

    (pipe,) = (tmp_path / "share_dirs" / "mps").rglob("pipe")

    on_the_way = [place for place in (pipe, *pipe.parents) if tmp_path in place.parents]
    assert all(place.stat().st_mode & 0o001 for place in on_the_way)


def test_a_pod_that_asks_for_it(control: Path, tmp_path: Path) -> None:
    """It reaches the daemon of its card, has its part of the compute, and its memory is fenced as everywhere."""
    found = Machine(tmp_path).starts("pod-1")

    assert found.environment["CUDA_MPS_PIPE_DIRECTORY"] == MPS
    assert found.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    (pipe,) = (mount for mount in found.mounts if mount.path == MPS)
    assert (Path(pipe.source) / "control").exists()
    assert found.requires_library
    assert "\nmode timesharing\n" in found.files[1].text


def test_one_daemon_for_each_card(control: Path, tmp_path: Path) -> None:
    """The first pod on a card starts it, the last one stops it; other cards have their own."""
    machine = Machine(tmp_path)
    for uid, card in (("pod-1", 0), ("pod-2", 0), ("pod-3", 1)):
        machine.starts(uid, card)
    assert (machine.daemons(), machine.started()) == (["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"])

    machine.devices.release("pod-1")
    assert machine.daemons() == ["GPU-a", "GPU-b"]
    machine.devices.release("pod-2")

    assert machine.daemons() == ["GPU-b"]


def test_a_daemon_outlives_the_platform(control: Path, tmp_path: Path) -> None:
    """The next platform finds it, starts no second one, and stops it when its last pod has gone meanwhile."""
    Machine(tmp_path).starts("pod-1")
    again = Machine(tmp_path)
    again.devices.sweep({"pod-1"})
    again.starts("pod-1")
    assert (again.daemons(), again.started()) == (["GPU-a"], ["GPU-a"])

    Machine(tmp_path).devices.sweep(frozenset())

    assert again.daemons() == []


def test_it_is_switched_off_unless_switched_on(control: Path, tmp_path: Path) -> None:
    """Who asks for it is not started, and the reason names the setting."""
    with pytest.raises(CannotStart, match="`aliquot up --gpu-mps` switches it on") as caught:
        Machine(tmp_path, GpuSettings()).starts("pod-1")

    assert caught.value.reason == "MPSUnavailable"


def test_a_machine_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for it where the program is missing is not started, and the reason names it."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CannotStart, match=f"this machine has no {PROGRAM}"):
        Machine(tmp_path).starts("pod-1")


def test_a_daemon_that_does_not_start(control: Path, tmp_path: Path) -> None:
    """The reason is its own, and nothing is left of it once the pod is gone."""
    (tmp_path / "broken").write_text("Cannot find a GPU\n")
    machine = Machine(tmp_path)

    with pytest.raises(CannotStart, match="did not start on GPU-a: Cannot find a GPU"):
        machine.starts("pod-1")

    machine.devices.release("pod-1")
    assert not (tmp_path / "share_dirs" / "mps" / "GPU-a").exists()


def test_sockets_need_a_short_path(control: Path, tmp_path: Path) -> None:
    """The control program does not say why it gives up; we do. Where memory is shared, no data folder is too long."""
    (tmp_path / "broken").touch()
    folder = tmp_path / ("x" * 60)
    folder.mkdir()

    with pytest.raises(CannotStart, match="is too long a path for its sockets; use a shorter --data-dir"):
        Machine(folder).starts("pod-1")

    fenced = open_share_dirs(tmp_path / ("y" * 200))
    fenced.folder.rmdir()
    assert len(str(fenced.folder / "mps" / f"GPU-{uuid4()}" / "pipe" / "control_privileged")) < 108


def test_only_on_one_gpu(control: Path, tmp_path: Path) -> None:
    """A pod can reach one daemon, so it cannot have parts of several cards under it."""
    with pytest.raises(CannotStart, match="on several GPUs"):
        Machine(tmp_path).starts("pod-1", 0, 1)


def test_on_simulated_gpus(tmp_path: Path) -> None:
    """The same rule and the same share, and no daemon: nothing is computed there."""
    (facts,) = node_of(tmp_path).nodes()
    shares = [DeviceShare(index=0, milli=250)]
    wish = SharingOptions(mode=ComputeMode.MPS)

    found = SimulatedDevices([facts], ON).injection(NODE, shares, wish, "pod-1").environment
    with pytest.raises(CannotStart, match="--gpu-mps"):
        SimulatedDevices([facts]).injection(NODE, shares, wish, "pod-1")

    assert (found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], found["ALIQUOT_SIMULATED"]) == ("25", "true")
