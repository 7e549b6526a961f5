"""Fixtures for tests of the local agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.pods.agent_harness import AgentHarness


def modes() -> list[str]:
    """As root both modes are tested: with namespaces, and without them as for an ordinary user."""
    return ["root", "user"] if os.geteuid() == 0 or os.environ.get("CI") else ["user"]


@pytest_asyncio.fixture(params=modes())
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AgentHarness]:
    made = AgentHarness(tmp_path / "data", isolated=request.param == "root")
    yield made
    await made.clean()


@pytest_asyncio.fixture
async def isolated_harness(tmp_path: Path) -> AsyncIterator[AgentHarness]:
    """A harness with isolated pods only."""
    made = AgentHarness(tmp_path / "data", isolated=True)
    yield made
    await made.clean()
