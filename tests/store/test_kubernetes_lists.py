"""Lists on a real API server: in pages, with selectors, and when the list's snapshot expires between pages."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.api import Json
from aliquot.errors import Invalid
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.http.transport import Query, Timeouts, Transport
from support.kubernetes.cluster import Cluster
from support.kubernetes.kinds import GADGET, gadget

pytestmark = pytest.mark.kube


async def _make(kube: KubernetesDriver, namespace: str, count: int) -> list[str]:
    names = [f"g{index}" for index in range(count)]
    colors = ("red", "blue")
    for index, name in enumerate(names):
        metadata = {"labels": {"half": colors[index % 2]}}
        await kube.create(GADGET, gadget(namespace, name, metadata=metadata, color=colors[index % 2]))
    return names


async def test_pages_make_one_list(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """A list in pages is complete and in order, and so is each object."""
    names = await _make(kube, namespace, 5)

    async with KubernetesDriver(kubeconfig.load([cluster_with_gadgets.kubeconfig]), page=2) as paged:
        listing = await paged.list(GADGET, namespace)

    assert [document.name for document in listing.items] == names
    assert listing.items == (await kube.list(GADGET, namespace)).items
    assert all(document.data["kind"] == "Gadget" for document in listing.items)
    assert all(document.data["apiVersion"] == GADGET.api_version for document in listing.items)


class _Forgetful(Transport):
    """A server that restarts after the first page and has compacted the history of the list."""

    cluster: Cluster
    reads = 0

    async def read(self, path: str, query: Query | None = None) -> Json:
        page = await super().read(path, query)
        self.reads += 1
        if self.reads == 1:
            await super().write("PATCH", f"{path}/g4", {"spec": {"size": 7}}, "application/merge-patch+json")
            self.cluster.compact_etcd()
            self.cluster.kill_apiserver()
            await asyncio.to_thread(self.cluster.start_apiserver)
        return page


async def test_forgotten_snapshot_starts_again(
    kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str
) -> None:
    """A list whose snapshot expires between pages is read again, so that it is consistent."""
    names = await _make(kube, namespace, 5)
    endpoint = kubeconfig.load([cluster_with_gadgets.kubeconfig])
    async with KubernetesDriver(endpoint, page=2) as paged:
        paged._transport = forgetful = _Forgetful(endpoint, Timeouts())
        forgetful.cluster = cluster_with_gadgets
        listing = await paged.list(GADGET, namespace)

    assert [document.name for document in listing.items] == names
    assert listing.items[4].data["spec"]["size"] == 7
    assert forgetful.reads == 2  # the first page, no second one, then all in one piece


async def test_selectors_reach_the_server(kube: KubernetesDriver, namespace: str) -> None:
    """Label and field selectors work, also with characters that a URL must quote."""
    await _make(kube, namespace, 4)

    for labels in ("half=red", "half in (red, none)", "half!=blue", "half,half notin (blue)"):
        listing = await kube.list(GADGET, namespace, labels=labels)
        assert [document.name for document in listing.items] == ["g0", "g2"], labels
    listing = await kube.list(GADGET, namespace, fields="spec.color=blue,metadata.name!=g1")
    assert [document.name for document in listing.items] == ["g3"]


@pytest.mark.parametrize("selector", [{"labels": "a=(b"}, {"fields": "spec.size=1"}])
async def test_bad_selector_is_invalid(kube: KubernetesDriver, namespace: str, selector: dict[str, str]) -> None:
    """An invalid selector or an unsupported field is invalid input."""
    with pytest.raises(Invalid):
        await kube.list(GADGET, namespace, **selector)


async def test_every_namespace_is_listed(kube: KubernetesDriver, cluster_with_gadgets: Cluster, namespace: str) -> None:
    """Without a namespace the list spans all of them."""
    other = cluster_with_gadgets.create_namespace()
    await kube.create(GADGET, gadget(namespace, "everywhere"))
    await kube.create(GADGET, gadget(other, "everywhere"))

    listing = await kube.list(GADGET, fields="metadata.name=everywhere")

    assert {document.namespace for document in listing.items} == {namespace, other}
