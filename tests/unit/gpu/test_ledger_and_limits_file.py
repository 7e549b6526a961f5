"""The files that the sharing library reads and writes, as the agent sees them."""

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
    wish = SharingOptions(limit_milli=800)
    share = DeviceShare(index=0, milli=250)
    cards = [Device(index=0, uuid=uuid, memory_mib=1000) for uuid in uuids]
    slices = [gpu_allocation(card, share, wish, pod_uid="pod-1") for card in cards]
    path = folder / "limits"
    path.write_text(render_limits(slices))
    return path


def test_what_was_refused(tmp_path: Path) -> None:
    """How often memory was refused and how much was asked for last."""
    (tmp_path / "ledger").write_bytes(ledger_bytes(refusals=3, requested=20 * MIB))

    assert ledger.read(tmp_path / "ledger") == Ledger("pod-1", 3, 20 * MIB)


def test_an_entry_point_that_is_not_known(tmp_path: Path) -> None:
    """A driver that is newer than the library is named by what it offered."""
    (tmp_path / "ledger").write_bytes(ledger_bytes(unknown="cuMemAlloc_v9"))

    assert ledger.read(tmp_path / "ledger").unknown == "cuMemAlloc_v9"


@pytest.mark.parametrize(
    "data", [b"", bytes(131072), ledger_bytes(magic=1), ledger_bytes()[:-1]], ids=["empty", "new", "other", "short"]
)
def test_a_ledger_that_says_nothing(tmp_path: Path, data: bytes) -> None:
    """One that nobody has used, or that was damaged, is not read; pods can write what they like into theirs."""
    (tmp_path / "ledger").write_bytes(data)

    assert ledger.read(tmp_path / "ledger") == Ledger() == ledger.read(tmp_path / "none")


def test_a_ledger_that_was_made_enormous(tmp_path: Path) -> None:
    """A pod can make its file as long as it likes; that costs the platform nothing."""
    with (tmp_path / "ledger").open("wb") as file:
        file.truncate(1 << 42)

    assert ledger.read(tmp_path / "ledger") == Ledger()


def test_limits_are_read_back(tmp_path: Path) -> None:
    """What was written for a pod is found again, also by a platform that was started later."""
    path = write_limits_file(tmp_path, "GPU-a", "GPU-b")

    assert limits_file.read_limits(path) == {
        uuid: Limit(limit=800 * MIB, guaranteed=250 * MIB, cap=800 * MIB) for uuid in ("GPU-a", "GPU-b")
    }


def test_a_limit_is_changed_in_place(tmp_path: Path) -> None:
    """The same file, of that GPU alone, the rest as it was: pods have this very file mounted."""
    path = write_limits_file(tmp_path, "GPU-a", "GPU-b")
    before, number = path.read_text(), path.stat().st_ino

    assert limits_file.write_limit(path, "GPU-b", 7)

    found = limits_file.read_limits(path)
    assert (found["GPU-a"].limit, found["GPU-b"]) == (800 * MIB, Limit(7, 250 * MIB, 800 * MIB))
    assert path.stat().st_ino == number
    assert limits_file.write_limit(path, "GPU-b", 800 * MIB)
    assert path.read_text() == before


def test_a_limit_that_is_so_already(tmp_path: Path) -> None:
    """Nothing is written, and nothing is said to have changed."""
    path = write_limits_file(tmp_path, "GPU-a")

    assert not limits_file.write_limit(path, "GPU-a", 800 * MIB)
    assert not limits_file.write_limit(tmp_path / "none", "GPU-a", 1)
