"""The page about Kubernetes is true, on a real control plane with the real kubectl."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs.console import ROOT, Tour, read
from support.kubernetes.cluster import CONTROLLERS, Cluster, programs
from support.kubernetes.fixtures import available_programs
from support.kubernetes.kwok import add_nodes, start_kwok


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """One that nobody else writes to: the page shows all that is there. Its two nodes are KWOK's."""
    running = Cluster(
        available_programs(),
        controllers=(*CONTROLLERS, "node-lifecycle-controller", "job-controller"),
        controller_arguments=("--node-monitor-grace-period=12h",),
    ).start()
    start_kwok(running)
    add_nodes(running, ["dgx1-1", "dgx1-2"])
    yield running
    running.stop()


@pytest.mark.kube
@pytest.mark.xdist_group("kwok")
def test_page_shows_what_happens(own_cluster: Cluster, tmp_path: Path) -> None:
    """Whoever follows the page on a cluster sees what it shows."""
    settings = tmp_path / ".kube"
    settings.mkdir()
    shutil.copytree(own_cluster.pki, settings / "pki")
    shutil.copy(own_cluster.kubeconfig, settings / "config")
    tour = Tour(read(ROOT / "docs/kubernetes.md"), tmp_path, first_on_path=programs())
    assert tour.run() == tour.expected()
