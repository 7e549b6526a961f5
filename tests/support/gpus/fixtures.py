"""A platform on the stand-in cards, for tests that share it; each names its own jobs, which are gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gpus.node import Node
from support.gpus.standin import standin


@pytest.fixture(scope="session")
def shared_node(native_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    made = Node(folder / "platform", standin(native_build, folder / "standin")).up()
    yield made
    made.down()


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """With nothing on its cards."""
    yield shared_node
    shared_node.clean()
