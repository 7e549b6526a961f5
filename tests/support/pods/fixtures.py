"""A world for tests of the agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.pods.world import World


def modes() -> list[str]:
    """As root both ways of running are tried: what an ordinary user gets is the same without namespaces."""
    return ["root", "user"] if os.geteuid() == 0 or os.environ.get("CI") else ["user"]


@pytest_asyncio.fixture(params=modes())
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "data", isolated=request.param == "root")
    yield made
    await made.clean()


@pytest_asyncio.fixture
async def island(tmp_path: Path) -> AsyncIterator[World]:
    """With isolation only."""
    made = World(tmp_path / "data", isolated=True)
    yield made
    await made.clean()
