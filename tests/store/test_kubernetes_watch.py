"""Watches on a real API server, over a network and a server that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aliquot.errors import Exists, Expired, Invalid, Unavailable
from aliquot.store.driver import Change
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http.transport import Timeouts
from aliquot.store.informer import Informer
from support.kubernetes.cluster import Cluster
from support.kubernetes.kinds import GADGET, gadget
from support.kubernetes.tcp_proxy import TcpProxy, driver_through

pytestmark = pytest.mark.kube


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    """The next changes that carry an object."""
    seen: list[Change] = []
    async with asyncio.timeout(30):
        async for change in changes:
            if change.type != "BOOKMARK":
                seen.append(change)
            if len(seen) == count:
                break
    return seen


def names(changes: list[Change]) -> list[str]:
    return [change.document.name for change in changes if change.document]


async def test_watch_brings_changes_in_order(kube: KubernetesDriver, namespace: str) -> None:
    """From a list's version on, every change is seen once, in order, with its version."""
    start = (await kube.list(GADGET, namespace)).version
    created = await kube.create(GADGET, gadget(namespace, size=1))
    changed = await kube.patch(GADGET, "g", namespace, {"spec": {"size": 2}})
    await kube.delete(GADGET, "g", namespace)

    seen = await take(kube.watch(GADGET, namespace, version=start), 3)

    assert [change.type for change in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert [change.version for change in seen[:2]] == [created.version, changed.version]
    assert seen[0].document == created


async def test_leaving_a_selection_is_a_deletion(kube: KubernetesDriver, namespace: str) -> None:
    """An object that no longer matches the selector is seen as DELETED, with its current state."""
    start = (await kube.list(GADGET, namespace, fields="spec.color=red")).version
    await kube.create(GADGET, gadget(namespace, color="red"))
    await kube.create(GADGET, gadget(namespace, "other", color="blue"))
    changed = await kube.patch(GADGET, "g", namespace, {"spec": {"color": "blue"}})

    seen = await take(kube.watch(GADGET, namespace, version=start, fields="spec.color=red"), 2)

    assert [change.type for change in seen] == ["ADDED", "DELETED"]
    assert seen[1].version == changed.version


async def test_old_version_is_expired(kube: KubernetesDriver, namespace: str) -> None:
    """A compacted version, which the server reports inside the stream, is raised as too old."""
    with pytest.raises(Expired, match="too old"):
        await take(kube.watch(GADGET, namespace, version="1"), 1)


async def test_nonsense_version_is_invalid(kube: KubernetesDriver, namespace: str) -> None:
    """A text that is not a version is invalid input."""
    with pytest.raises(Invalid):
        await take(kube.watch(GADGET, namespace, version="yesterday"), 1)


async def test_killed_server_breaks_the_watch(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """A killed server is reported as unavailable, and the caller can resume from its last version."""
    changes = kube.watch(GADGET, namespace, version=(await kube.list(GADGET, namespace)).version)
    await kube.create(GADGET, gadget(namespace))
    await take(changes, 1)

    cluster_with_gadgets.kill_apiserver()
    try:
        with pytest.raises(Unavailable):
            await take(changes, 1)
    finally:
        await asyncio.to_thread(cluster_with_gadgets.start_apiserver)


async def test_watching_survives_a_server_crash(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """Over a crash of the server a reader misses nothing and hears nothing twice.

    A fresh API server may not know the reader's version any more. It says so, and the informer compares.
    """
    heard: list[str] = []
    wanted = ["before", "during-0", "during-1"]
    informer = Informer(kube, GADGET, lambda document: document.name, fields="metadata.name!=other")
    informer.listen(lambda key, old, new: heard.append(key[1]) if key[0] == namespace else None)
    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        running = group.create_task(informer.run())
        await kube.create(GADGET, gadget(namespace, "before"))
        cluster_with_gadgets.kill_apiserver()
        group.create_task(asyncio.to_thread(cluster_with_gadgets.start_apiserver))
        await _persistently(kube, namespace)
        while len(heard) < len(wanted):  # noqa: ASYNC110  # a listener is a plain function
            await asyncio.sleep(0.05)
        running.cancel()

    assert heard == wanted


async def _persistently(kube: KubernetesDriver, namespace: str) -> None:
    """Two creates while the server starts: the driver itself retries refused connections."""
    for index in range(2):
        while True:
            try:
                await kube.create(GADGET, gadget(namespace, f"during-{index}"))
                break
            except Exists:
                break  # an answer was lost, the write was not
            except Unavailable:
                continue


async def test_cut_stream_is_unavailable(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """A connection reset ends the watch with a retryable error."""
    version = (await kube.list(GADGET, namespace)).version
    async with TcpProxy(cluster_with_gadgets.port) as proxy, driver_through(proxy, cluster_with_gadgets) as driver:
        changes = driver.watch(GADGET, namespace, version=version)
        await kube.create(GADGET, gadget(namespace, "a"))
        [seen] = await take(changes, 1)
        proxy.cut()
        with pytest.raises(Unavailable):
            await take(changes, 1)
        await kube.create(GADGET, gadget(namespace, "b"))

        assert names(await take(driver.watch(GADGET, namespace, version=seen.version), 1)) == ["b"]


async def test_chopped_stream_is_whole(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """Objects of a megabyte that arrive in small chunks are complete."""
    version = (await kube.list(GADGET, namespace)).version
    text = "é" * 400_000
    await kube.create(GADGET, gadget(namespace, "long", text=text))
    await kube.create(GADGET, gadget(namespace, "short"))

    async with (
        TcpProxy(cluster_with_gadgets.port, piece=1361) as proxy,
        driver_through(proxy, cluster_with_gadgets) as driver,
    ):
        seen = await take(driver.watch(GADGET, namespace, version=version), 2)

    assert names(seen) == ["long", "short"]
    assert seen[0].document is not None
    assert seen[0].document.data["spec"]["text"] == text


async def test_silence_asks_again(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """A silent stream is reopened from the last version, and nothing is missed."""
    version = (await kube.list(GADGET, namespace)).version
    quick = Timeouts(silence=0.5)
    async with (
        TcpProxy(cluster_with_gadgets.port) as proxy,
        driver_through(proxy, cluster_with_gadgets, quick) as driver,
    ):
        changes = driver.watch(GADGET, namespace, version=version)
        await kube.create(GADGET, gadget(namespace, "a"))
        await take(changes, 1)
        proxy.connected.clear()
        later = asyncio.create_task(take(changes, 1))
        await proxy.connected.wait()
        await kube.create(GADGET, gadget(namespace, "b"))

        assert names(await later) == ["b"]


async def test_dead_network_is_unavailable(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """When no data passes at all, the watch fails within its timeouts."""
    version = (await kube.list(GADGET, namespace)).version
    await kube.create(GADGET, gadget(namespace, "a"))
    await take(kube.watch(GADGET, namespace, version=version), 1)  # with all patience: a young server is busy at first
    quick = Timeouts(deadline=0.5, answer=0.5, silence=0.5)
    async with (
        TcpProxy(cluster_with_gadgets.port) as proxy,
        driver_through(proxy, cluster_with_gadgets, quick) as driver,
    ):
        changes = driver.watch(GADGET, namespace, version=version)
        await take(changes, 1)
        proxy.stall()

        with pytest.raises(Unavailable, match=r"in time|timeout"):
            await take(changes, 1)
