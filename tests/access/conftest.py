"""A real API server with our kinds, and an administrator's access to its store.

It is not shared with other tests: their rules for the whole cluster would show up in every namespace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from access.team import Team
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.kubernetes.fixtures import available_programs, install_kinds, run_in_thread


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    running = Cluster(available_programs()).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster_with_kinds(cluster: Cluster) -> Cluster:
    run_in_thread(install_kinds(cluster))
    return cluster


@pytest_asyncio.fixture
async def admin(cluster_with_kinds: Cluster) -> AsyncIterator[KubernetesDriver]:
    async with KubernetesDriver(kubeconfig.load([cluster_with_kinds.kubeconfig])) as driver:
        yield driver


@pytest_asyncio.fixture
async def team(admin: KubernetesDriver) -> AsyncIterator[Team]:
    prepared = await Team(admin).prepare()
    yield prepared
    await prepared.delete_wide_rules()
