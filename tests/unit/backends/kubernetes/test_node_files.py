"""The sharing library on nodes: installed atomically, and never overwritten."""

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
    path = native.library("x86_64")
    assert path is not None, "run `make native` to build the sharing library"
    return path


def test_install(library: Path, tmp_path: Path) -> None:
    """Every user can load the library and write to the folder of gates; nothing else is created."""
    installed = install(tmp_path / "lib", tmp_path / "gates", "x86_64")

    assert installed.read_bytes() == library.read_bytes()
    assert installed.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path / "lib") == ["libgpushare.so"]
    assert (tmp_path / "gates").stat().st_mode & 0o7777 == 0o1777


def test_install_again(library: Path, tmp_path: Path) -> None:
    """An identical library stays the same file."""
    before = install(tmp_path, machine="x86_64").stat().st_ino
    assert install(tmp_path, machine="x86_64").stat().st_ino == before


def test_older_library_is_replaced(library: Path, tmp_path: Path) -> None:
    """A program that has the older library open keeps it: the newer one is another file."""
    path = tmp_path / "libgpushare.so"
    path.write_bytes(b"older")
    with path.open("rb") as file:
        install(tmp_path, machine="x86_64")
        assert file.read() == b"older"
    assert path.read_bytes() == library.read_bytes()


def test_unknown_machine(tmp_path: Path) -> None:
    """The error names the machine for which no library was built."""
    with pytest.raises(Unavailable, match="not built for m68k"):
        install(tmp_path, machine="m68k")


def test_cannot_write(library: Path) -> None:
    """The error names a folder that cannot be written."""
    with pytest.raises(PlatformError, match="cannot write /proc/nothing"):
        install(Path("/proc/nothing"), machine="x86_64")


def test_daemon_set() -> None:
    """It runs on every node that may have real GPUs, and mounts the folders that pods use."""
    settings = GpuSharingSettings(image="i", library_folder="/lib/a", gate_folder="/run/g")
    spec = daemon_set(settings, Installer("other", ("install",)))["spec"]["template"]["spec"]

    paths = [volume["hostPath"]["path"] for volume in spec["volumes"]]
    assert paths == ["/lib/a", "/run/g"]
    assert spec["initContainers"][0]["command"] == ["install"]
    assert {container["image"] for container in (*spec["initContainers"], *spec["containers"])} == {"other"}
    assert daemon_set(settings)["spec"]["template"]["spec"]["containers"][0]["image"] == "i"
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {"key": labels.SIMULATED, "operator": "NotIn", "values": ["true"]} in terms[0]["matchExpressions"]
