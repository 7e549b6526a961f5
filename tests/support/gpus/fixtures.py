"""A platform on the fake driver, for tests that share it; each names its own jobs, which are deleted afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gpus.fake_driver import install_fake_driver
from support.gpus.node import Node


@pytest.fixture(scope="session")
def shared_node(native_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    platform = Node(folder / "platform", install_fake_driver(native_build, folder / "fake-driver")).up()
    yield platform
    platform.down()


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The shared platform, with no processes on its GPUs."""
    yield shared_node
    shared_node.clean()
