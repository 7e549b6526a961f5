"""What an administrator can configure about the Kubernetes backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import aliquot

# Contains Aliquot, a shell and the usual small programs.
IMAGE = f"aliquot/aliquot:{aliquot.__version__}"


@dataclass(frozen=True, slots=True)
class GpuSharingSettings:
    # Of reservation pods, of the DaemonSet that installs node files, and of the init container of pods with fractions.
    image: str = IMAGE
    image_pull_policy: str = "IfNotPresent"
    # Of pods that use GPUs, if NVIDIA's runtime is not the node's default; empty: the default runtime.
    runtime_class: str = ""
    # Folder on nodes that holds the sharing library. It must not be mounted noexec.
    library_folder: str = "/var/lib/aliquot/gpushare"
    # Folder on nodes that holds the gate files of `fair` and `strict`. On a tmpfs, so that a reboot clears it.
    gate_folder: str = "/run/aliquot/gpushare/gates"
    # Seconds that a bind waits for the reservation of its GPU; the first one on a node may have to pull an image.
    hold_seconds: float = 30.0
    # Seconds after which a reserved GPU that no pod uses is released.
    idle_seconds: float = 1.0
    # The same if the reservation pod does not run yet.
    preparing_seconds: float = 180.0
    # Seconds after which the claim of a pending pod is broken.
    claim_seconds: float = 90.0

    @property
    def library(self) -> str:
        return f"{self.library_folder}/libgpushare.so"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster to serve, and how to reach it."""

    kubeconfig: Path | None = None  # None: the cluster that this process runs in
    context: str = ""
    # Where users reach the API server, if it differs from where this process does; written to issued kubeconfigs.
    api_address: str = ""
    # Seconds that a node may be silent before its jobs are restarted elsewhere.
    node_loss: float = 60.0
    # Where the API server reaches the webhook if this process runs outside of the cluster, such as
    # https://10.0.0.7:9443. Empty: the service inside the cluster, or loopback if the API server is on this machine.
    webhook_url: str = ""
    webhook_port: int = 0  # to listen on; 0: the port of webhook_url, else a free one
    # Whether a DaemonSet installs the sharing library on nodes.
    node_files: bool = True
    sharing: GpuSharingSettings = GpuSharingSettings()
