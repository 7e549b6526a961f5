"""The page about Kubernetes is true, on a real control plane with the real kubectl."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.cluster import Cluster, programs, programs_ready
from tours.console import ROOT, Tour, read


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """One that nobody else writes to: the page shows all that is there."""
    if os.environ.get("CI") != "true" and not (shutil.which("openssl") and programs_ready()):
        pytest.skip("install openssl and run `make kube` (needs Go 1.26) to try the page about Kubernetes")
    running = Cluster(programs()).start()
    yield running
    running.stop()


@pytest.mark.kube
def test_page_shows_what_happens(own_cluster: Cluster, tmp_path: Path) -> None:
    """Whoever follows the page on a cluster sees what it shows."""
    settings = tmp_path / ".kube"
    settings.mkdir()
    shutil.copytree(own_cluster.pki, settings / "pki")
    shutil.copy(own_cluster.kubeconfig, settings / "config")
    tour = Tour(read(ROOT / "docs/kubernetes.md"), tmp_path, first_on_path=programs())
    assert tour.run() == tour.expected()
