"""The library on nodes: complete or not at all, never written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot import labels, native
from aliquot.backends.kubernetes.node_files import Installer, daemon_set, install
from aliquot.backends.kubernetes.settings import GpuSharingSettings
from aliquot.errors import PlatformError, Unavailable


@pytest.fixture
def library() -> Path:
    found = native.library("x86_64")
    assert found is not None, "run `make native` to build the sharing library"
    return found


def test_put(library: Path, tmp_path: Path) -> None:
    """Library and gates are there, and nothing else; anybody may load the one and use the other."""
    made = install(tmp_path / "lib", tmp_path / "gates", "x86_64")

    assert made.read_bytes() == library.read_bytes()
    assert made.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path / "lib") == ["libgpushare.so"]
    assert (tmp_path / "gates").stat().st_mode & 0o7777 == 0o1777


def test_put_again(library: Path, tmp_path: Path) -> None:
    """What is there already stays the same file."""
    before = install(tmp_path, machine="x86_64").stat().st_ino
    assert install(tmp_path, machine="x86_64").stat().st_ino == before


def test_older_library_is_replaced(library: Path, tmp_path: Path) -> None:
    """Who has the older library open keeps it: the newer is another file."""
    place = tmp_path / "libgpushare.so"
    place.write_bytes(b"older")
    with place.open("rb") as held:
        install(tmp_path, machine="x86_64")
        assert held.read() == b"older"
    assert place.read_bytes() == library.read_bytes()


def test_unknown_machine(tmp_path: Path) -> None:
    """Where no library was built for a machine it says so."""
    with pytest.raises(Unavailable, match="not built for m68k"):
        install(tmp_path, machine="m68k")


def test_cannot_write(library: Path) -> None:
    """A folder that cannot be written is named."""
    with pytest.raises(PlatformError, match="cannot write /proc/nothing"):
        install(Path("/proc/nothing"), machine="x86_64")


def test_daemon_set() -> None:
    """It runs on every node that may have GPUs, with the folders that pods mount the library from."""
    settings = GpuSharingSettings(image="i", library_folder="/lib/a", gate_folder="/run/g")
    spec = daemon_set(settings, Installer("other", ("put",)))["spec"]["template"]["spec"]

    paths = [one["hostPath"]["path"] for one in spec["volumes"]]
    assert paths == ["/lib/a", "/run/g"]
    assert spec["initContainers"][0]["command"] == ["put"]
    assert {one["image"] for one in (*spec["initContainers"], *spec["containers"])} == {"other"}
    assert daemon_set(settings)["spec"]["template"]["spec"]["containers"][0]["image"] == "i"
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": labels.SIMULATED, "operator": "NotIn", "values": ["true"]} in terms[0]["matchExpressions"]
