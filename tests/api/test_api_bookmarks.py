"""Bookmarks: a quiet watch regularly gets the present version, so that it can resume from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest_asyncio
import uvicorn

from aliquot.controllers.bootstrap import bootstrap
from aliquot.folder import DataFolder
from aliquot.server.app import ServerContext, application
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.typed_store import Store

WORKLOADS = "/apis/aliquot.dev/v1/workloads"


@pytest_asyncio.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A server that sends a bookmark many times a second instead of four times a minute."""
    folder = DataFolder(tmp_path)
    driver = SqliteDriver(folder.database, bookmark_seconds=0.05)
    await bootstrap(Store(driver), folder)
    context = ServerContext(driver)
    informing = [asyncio.create_task(informer.run()) for informer in context.informers]
    server = uvicorn.Server(uvicorn.Config(application(context), port=0, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"Authorization": f"Bearer {folder.read_token()}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        yield session
    context.stopping.set()
    server.should_exit = True
    await serving
    for task in informing:
        task.cancel()
    await asyncio.gather(*informing, return_exceptions=True)
    await driver.close()


async def _bookmark(session: aiohttp.ClientSession, version: str) -> dict[str, object]:
    query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
    async with asyncio.timeout(60), session.get(WORKLOADS, params=query) as response:
        return dict(json.loads(await response.content.readline()))


async def _version(session: aiohttp.ClientSession) -> str:
    async with session.get(WORKLOADS) as response:
        return str((await response.json())["metadata"]["resourceVersion"])


async def test_form(hasty: aiohttp.ClientSession) -> None:
    """A bookmark has only a kind and a version."""
    version = await _version(hasty)
    assert await _bookmark(hasty, version) == {
        "type": "BOOKMARK",
        "object": {"apiVersion": "aliquot.dev/v1", "kind": "Workload", "metadata": {"resourceVersion": version}},
    }


async def test_moves_on(hasty: aiohttp.ClientSession) -> None:
    """While other kinds change, a quiet watch gets their versions, so that it does not expire."""
    version = await _version(hasty)
    async with hasty.post("/apis/aliquot.dev/v1/departments", json={"metadata": {"name": "a"}}) as response:
        assert response.status == 201
        created = (await response.json())["metadata"]["resourceVersion"]
    bookmark = await _bookmark(hasty, version)
    assert bookmark["object"]["metadata"]["resourceVersion"] == created  # type: ignore[index]
