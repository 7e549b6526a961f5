"""Pytest fixtures: one cluster per session (and per xdist worker), and a namespace for each test."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from aliquot.store.drivers.kubernetes import KubernetesDriver, install
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster, programs, programs_ready
from support.kubernetes.kinds import GADGET_DEFINITION

if TYPE_CHECKING:
    from support.kubernetes.nodes import NodeCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running control plane."""
    running = Cluster(available_programs()).start()
    yield running
    running.stop()


def available_programs() -> Path:
    """The folder of the Kubernetes programs. If they are missing it skips, or builds them with CI=true."""
    if os.environ.get("CI") != "true":
        if shutil.which("openssl") is None:
            pytest.skip("install openssl to run the tests on a real Kubernetes API server")
        if not programs_ready():
            pytest.skip("run `make kube` (needs Go 1.26) or set KUBEBUILDER_ASSETS to test on a real API server")
    return programs()


@pytest.fixture(scope="session")
def real_nodes() -> Iterator[NodeCluster]:
    """A separate cluster with two real nodes. Mark such tests `xdist_group("nodes")`, so that one worker runs them."""
    from support.kubernetes.nodes import NodeCluster

    running = NodeCluster(available_nodes()).start()
    yield running
    running.stop()


def available_nodes() -> Path:
    """The folder of the Kubernetes programs, if this machine can run nodes; otherwise skips, or fails with CI=true."""
    from support.kubernetes.nodes import missing

    lacking = missing()
    if lacking and os.environ.get("CI") == "true":
        pytest.fail(f"tests on real nodes need {lacking}")
    if lacking:
        pytest.skip(f"tests on real nodes need {lacking}")
    return available_programs()


@pytest.fixture(scope="session")
def cluster_with_kinds(cluster: Cluster) -> Cluster:
    """The cluster, with our custom resources installed."""
    run_in_thread(install_kinds(cluster))
    return cluster


@pytest.fixture(scope="session")
def cluster_with_gadgets(cluster: Cluster) -> Cluster:
    """The cluster, with the custom resource that tests of the client use."""
    run_in_thread(install_kinds(cluster, [GADGET_DEFINITION]))
    return cluster


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """The name of a new namespace."""
    return cluster.create_namespace()


@pytest_asyncio.fixture
async def kube(cluster_with_gadgets: Cluster) -> AsyncIterator[KubernetesDriver]:
    """A driver for the cluster, as its administrator."""
    async with KubernetesDriver(kubeconfig.load([cluster_with_gadgets.kubeconfig])) as driver:
        yield driver


async def install_kinds(cluster: Cluster, definitions: list[dict[str, Any]] | None = None) -> None:
    async with KubernetesDriver(kubeconfig.load([cluster.kubeconfig])) as driver:
        await install(driver, definitions)


def run_in_thread(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in a thread with its own event loop, apart from the test's loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
