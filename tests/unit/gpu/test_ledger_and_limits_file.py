"""The files that the sharing library reads and writes: ledger and limits file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.api import Device, DeviceShare
from aliquot.gpu import ledger, limits_file
from aliquot.gpu.fractions import SharingOptions, gpu_allocation
from aliquot.gpu.ledger import Ledger
from aliquot.gpu.limits_file import Limit, render_limits
from aliquot.units import MIB
from support.gpus import ledger_bytes


def write_limits_file(folder: Path, *uuids: str) -> Path:
    options = SharingOptions(limit_milli=800)
    share = DeviceShare(index=0, milli=250)
    devices = [Device(index=0, uuid=uuid, memory_mib=1000) for uuid in uuids]
    allocations = [gpu_allocation(device, share, options, pod_uid="pod-1") for device in devices]
    path = folder / "limits"
    path.write_text(render_limits(allocations))
    return path


def test_refusals(tmp_path: Path) -> None:
    """The number of refusals, and the bytes of the last refused request."""
    (tmp_path / "ledger").write_bytes(ledger_bytes(refusals=3, requested=20 * MIB))

    assert ledger.read(tmp_path / "ledger") == Ledger("pod-1", 3, 20 * MIB)


def test_an_unknown_entry_point(tmp_path: Path) -> None:
    """The ledger names an entry point of a driver that is newer than the library."""
    (tmp_path / "ledger").write_bytes(ledger_bytes(unknown="cuMemAlloc_v9"))

    assert ledger.read(tmp_path / "ledger").unknown == "cuMemAlloc_v9"


@pytest.mark.parametrize(
    "data", [b"", bytes(131072), ledger_bytes(magic=1), ledger_bytes()[:-1]], ids=["empty", "new", "other", "short"]
)
def test_an_unusable_ledger(tmp_path: Path, data: bytes) -> None:
    """A ledger that is unused or damaged reads as empty; pods can write anything into theirs."""
    (tmp_path / "ledger").write_bytes(data)

    assert ledger.read(tmp_path / "ledger") == Ledger() == ledger.read(tmp_path / "none")


def test_an_enormous_ledger(tmp_path: Path) -> None:
    """A pod can make its file any length, at no cost for the platform."""
    with (tmp_path / "ledger").open("wb") as file:
        file.truncate(1 << 42)

    assert ledger.read(tmp_path / "ledger") == Ledger()


def test_limits_are_read_back(tmp_path: Path) -> None:
    """Limits that were written for a pod are read back, also by a platform that was started later."""
    path = write_limits_file(tmp_path, "GPU-a", "GPU-b")

    assert limits_file.read_limits(path) == {
        uuid: Limit(limit=800 * MIB, guaranteed=250 * MIB, cap=800 * MIB) for uuid in ("GPU-a", "GPU-b")
    }


def test_a_limit_is_changed_in_place(tmp_path: Path) -> None:
    """Only the limit of that GPU changes, in the same file: pods have this very file mounted."""
    path = write_limits_file(tmp_path, "GPU-a", "GPU-b")
    before, number = path.read_text(), path.stat().st_ino

    assert limits_file.write_limit(path, "GPU-b", 7)

    limits = limits_file.read_limits(path)
    assert (limits["GPU-a"].limit, limits["GPU-b"]) == (800 * MIB, Limit(7, 250 * MIB, 800 * MIB))
    assert path.stat().st_ino == number
    assert limits_file.write_limit(path, "GPU-b", 800 * MIB)
    assert path.read_text() == before


def test_an_unchanged_limit(tmp_path: Path) -> None:
    """Nothing is written, and the result says that nothing changed."""
    path = write_limits_file(tmp_path, "GPU-a")

    assert not limits_file.write_limit(path, "GPU-a", 800 * MIB)
    assert not limits_file.write_limit(tmp_path / "none", "GPU-a", 1)
