"""The installation of our CRDs: they are created, updated, and never downgraded."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from aliquot.api import KINDS, Kind
from aliquot.errors import Invalid
from aliquot.labels import INSTALLED_VERSION
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import DEFINITION, KubernetesDriver, install
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.kubernetes.kinds import GADGET_DEFINITION, GROUP

pytestmark = pytest.mark.kube


def definition(word: str) -> dict[str, Any]:
    """The gadget definition under another name, so that tests do not interfere."""
    created = copy.deepcopy(GADGET_DEFINITION)
    created["metadata"]["name"] = f"{word}s.{GROUP}"
    created["spec"]["names"] = {"plural": f"{word}s", "singular": word, "kind": word.title()}
    return created


@pytest_asyncio.fixture
async def driver(cluster: Cluster) -> AsyncIterator[KubernetesDriver]:
    async with KubernetesDriver(kubeconfig.load([cluster.kubeconfig])) as driver:
        yield driver


async def test_every_kind_of_ours_is_served(cluster_with_kinds: Cluster, driver: KubernetesDriver) -> None:
    """After an installation without further arguments the cluster serves all our kinds."""
    for kind in KINDS:
        await driver.list(kind)


async def test_installed_kind_is_served(driver: KubernetesDriver) -> None:
    """When the installation returns, objects of the kind can be listed at once."""
    await install(driver, [definition("lamp")])

    kind: Kind[Any] = Kind(name="Lamp", type=dict, plural="lamps", group=GROUP, namespaced=True)
    assert (await driver.list(kind)).items == []


async def test_installing_twice_changes_nothing(driver: KubernetesDriver) -> None:
    """A second installation of the same version changes nothing."""
    await install(driver, [definition("chair")])
    before = await driver.get(DEFINITION, f"chairs.{GROUP}")
    await install(driver, [definition("chair")])

    after = await driver.get(DEFINITION, f"chairs.{GROUP}")
    assert (after.version, after.data["spec"]) == (before.version, before.data["spec"])


async def test_many_install_at_once(driver: KubernetesDriver) -> None:
    """Concurrent installations all succeed."""
    await asyncio.gather(*(install(driver, [definition("table")]) for _ in range(5)))

    assert (await driver.get(DEFINITION, f"tables.{GROUP}")).data["spec"]["names"]["plural"] == "tables"


async def test_schema_is_brought_up_to_date(driver: KubernetesDriver) -> None:
    """A changed schema replaces that of an earlier version; labels and annotations of others stay."""
    await install(driver, [definition("clock")])
    name = f"clocks.{GROUP}"
    metadata = {"annotations": {INSTALLED_VERSION: "0.0.1", "mine": "kept"}}
    await driver.patch(DEFINITION, name, "", {"metadata": metadata})
    changed = definition("clock")
    changed["spec"]["names"]["shortNames"] = ["clk"]

    await install(driver, [changed])

    after = await driver.get(DEFINITION, name)
    assert after.data["spec"]["names"]["shortNames"] == ["clk"]
    assert after.metadata["annotations"]["mine"] == "kept"


@pytest.mark.parametrize("newer", ["version", "release"])
async def test_newer_definition_stays(driver: KubernetesDriver, newer: str) -> None:
    """A definition of a later Aliquot stays: one with another version, or a higher release."""
    word = f"sofa{newer}"
    later = definition(word)
    if newer == "version":
        later["spec"]["versions"].append({**later["spec"]["versions"][0], "name": "v2", "storage": False})
    else:
        later["metadata"]["annotations"] = {INSTALLED_VERSION: "99.10.0"}
    before = await driver.create(DEFINITION, Document(later))

    await install(driver, [definition(word)])

    after = await driver.get(DEFINITION, before.name)
    assert (after.data["spec"], after.metadata.get("annotations")) == (
        before.data["spec"],
        before.metadata.get("annotations"),
    )


async def test_taken_names_are_reported(driver: KubernetesDriver) -> None:
    """A definition whose short name belongs to another one is refused with the server's reason."""
    first, second = definition("stool"), definition("bench")
    second["spec"]["names"]["kind"] = "Stool"
    await install(driver, [first])

    with pytest.raises(Invalid, match=f"benchs.{GROUP}.*already in use"):
        await install(driver, [second])
