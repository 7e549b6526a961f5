"""Fixtures that build and run the sharing library, for tests here and elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.rig import SOURCE, Rig, build, compile_library


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    # with pytest-xdist each worker has a folder inside the run's folder: share one build
    return build((base.parent if base.name.startswith("popen-") else base) / "native-build")


@pytest.fixture
def rig(native_build: Path, tmp_path: Path) -> Rig:
    return Rig(native_build, tmp_path)


@pytest.fixture(scope="session")
def lease_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lease") / "liblease.so"
    compile_library(out, [SOURCE / "lease.c"], "-fvisibility=default")
    return out
