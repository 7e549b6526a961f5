"""What an administrator may choose about sharing GPUs on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import aliquot

# Holds the wheel, a shell and the usual small programs.
IMAGE = f"aliquot/aliquot:{aliquot.__version__}"


@dataclass(frozen=True, slots=True)
class GpuSharingSettings:
    # Of the pods that hold shared GPUs, that put the library on nodes, and of the step before a pod with a part.
    image: str = IMAGE
    image_pull_policy: str = "IfNotPresent"
    # Of pods that use GPUs, where NVIDIA's runtime is not the node's default; empty: the default.
    runtime_class: str = ""
    # Folder of nodes with the library. Not one that is mounted noexec.
    library_folder: str = "/var/lib/aliquot/gpushare"
    # Folder of nodes with the gates of `fair` and `strict`, in memory, so that a restart of the node clears it.
    gate_folder: str = "/run/aliquot/gpushare/gates"
    # Seconds that a bind waits for its GPU to be held: an image may have to be fetched the first time.
    hold_seconds: float = 30.0
    # Seconds that a held GPU may be nobody's before it is let go.
    idle_seconds: float = 1.0
    # The same for one that does not run yet.
    preparing_seconds: float = 180.0
    # Seconds after which the claim of a pod that still waits is broken.
    claim_seconds: float = 90.0

    @property
    def library(self) -> str:
        return f"{self.library_folder}/libgpushare.so"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster to serve, and how."""

    kubeconfig: Path | None = None  # None: the cluster we run in
    context: str = ""
    # Where users reach the API server, if not where we do: it is in the kubeconfigs that we issue.
    api_address: str = ""
    # Seconds that a node may be silent before its jobs go on elsewhere.
    node_loss: float = 60.0
    # Where the API server reaches our webhook from outside of the cluster, such as https://10.0.0.7:9443. Empty: by the
    # service in the cluster, or on loopback where the API server is there too.
    webhook_url: str = ""
    webhook_port: int = 0  # that we listen on; 0: as the URL says, else a free one
    # Whether the library is put on nodes by a DaemonSet of ours.
    node_files: bool = True
    sharing: GpuSharingSettings = GpuSharingSettings()
