"""Bodies that reach the test cluster by a detour."""

from __future__ import annotations

from dataclasses import replace

from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.http.transport import Patience
from support.kubernetes.cluster import Cluster
from support.kubernetes.proxy import Proxy


def through(proxy: Proxy, cluster: Cluster, patience: Patience | None = None) -> KubernetesDriver:
    """The cluster as seen behind the proxy."""
    direct = kubeconfig.load([cluster.kubeconfig])
    return KubernetesDriver(replace(direct, url=f"https://127.0.0.1:{proxy.port}"), patience=patience)
