"""The rig of the sharing library, for tests here and elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.rig import Rig, build


@pytest.fixture(scope="session")
def native_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    # with several workers each has a folder below the run's own
    return build((base.parent if base.name.startswith("popen-") else base) / "native-build")


@pytest.fixture
def rig(native_build: Path, tmp_path: Path) -> Rig:
    return Rig(native_build, tmp_path)
