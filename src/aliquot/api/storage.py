"""Storage and environment variables of a workload. Each storage entry is one mount."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from aliquot.api.field_types import Bytes, Interned, Strings
from aliquot.api.serialization import record
from aliquot.errors import Fault

# Colons and control characters would break the short forms on the command line.
MountPath = Annotated[str, Field(pattern=r"^/[^:\x00-\x1f]*$", max_length=4096)]


Propagation = Literal["None", "HostToContainer"]


AccessMode = Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]


@record
class HostPath:
    """A directory of the node."""

    path: MountPath
    """Directory on the node."""
    mount_path: MountPath
    """Path at which it is mounted in the container."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""
    read_only: bool | None = None
    """Whether the mount is read-only."""
    mount_propagation: Propagation | None = None
    """Whether later mounts on the node appear in the container."""


@record
class Nfs:
    """A directory of an NFS server."""

    server: str
    """Host name or address of the server."""
    path: MountPath
    """Directory on the server."""
    mount_path: MountPath
    """Path at which it is mounted in the container."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""
    read_only: bool | None = None
    """Whether the mount is read-only."""


@record
class ClaimMount:
    """A persistent volume claim: an existing one, or one that is created for the workload."""

    path: MountPath
    """Path at which it is mounted in the container."""
    claim_name: Interned = ""
    """Name of the claim; generated for a new claim unless set."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""
    existing: bool | None = None
    """Whether the claim must already exist. A claim created for the workload is deleted with it."""
    ephemeral: bool | None = None
    """Whether a claim created for the workload is also deleted when the workload is stopped."""
    storage_class: str = ""
    """Storage class of a new claim; defaults to the cluster's default class."""
    size: Bytes | None = None
    """Size of a new claim, such as 10Gi."""
    access_modes: tuple[AccessMode, ...] = ()
    """Access modes of a new claim; defaults to ReadWriteOnce."""
    volume_mode: Literal["Filesystem", "Block"] | None = None
    """Volume mode of a new claim; defaults to Filesystem."""
    read_only: bool | None = None
    """Whether the mount is read-only."""

    def faults(self, path: str) -> Iterator[Fault]:
        if self.existing and not self.claim_name:
            yield Fault(f"{path}.claimName", "is required for a claim that exists")
        if self.existing is False and self.size is None:
            yield Fault(f"{path}.size", "is required for a new claim")


@record
class Git:
    """A Git repository that is cloned before the container starts and kept up to date."""

    repository: str
    """URL of the repository."""
    path: MountPath | None = None
    """Path at which it is mounted in the container; defaults to /code."""
    branch: str = ""
    """Branch to follow."""
    revision: str = ""
    """Revision to check out; defaults to HEAD."""
    username: str = ""
    """User name at the server."""
    secret: str = ""
    """Name of a Secret with the keys user and password."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""


@record
class S3:
    """An S3 bucket."""

    bucket: str
    """Name of the bucket."""
    path: MountPath
    """Path at which it is mounted in the container."""
    url: str = ""
    """URL of the S3 service; defaults to Amazon's."""
    secret: str = ""
    """Name of a Secret with the keys AccessKeyId and SecretKey."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""


@record
class FilesOf:
    """The keys of a ConfigMap or Secret as files."""

    source: str
    """Name of the ConfigMap or Secret."""
    path: MountPath
    """Path at which the files are mounted in the container."""
    sub_path: str = ""
    """Single key to mount as one file."""
    default_mode: int | None = None
    """Permission bits of the files."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""


@record
class DataVolume:
    """A data volume that another project shares."""

    volume: str
    """Name of the data volume."""
    path: MountPath
    """Path at which it is mounted in the container."""
    name: str = ""
    """Name by which templates and policies refer to the entry."""


@record
class Storage:
    """Everything that is mounted into the containers."""

    host_path: tuple[HostPath, ...] = ()
    """Directories of the node."""
    nfs: tuple[Nfs, ...] = ()
    """Directories of NFS servers."""
    pvc: tuple[ClaimMount, ...] = ()
    """Persistent volume claims."""
    git: tuple[Git, ...] = ()
    """Git repositories."""
    s3: tuple[S3, ...] = ()
    """S3 buckets."""
    config_map: tuple[FilesOf, ...] = ()
    """ConfigMaps as files."""
    secret: tuple[FilesOf, ...] = ()
    """Secrets as files."""
    data_volume: tuple[DataVolume, ...] = ()
    """Data volumes that other projects share."""
    mount_propagation: Propagation | None = None
    """Mount propagation of host paths that do not set their own."""
    exclude: Strings = ()
    """Names of entries from a template or policy to remove."""


@record
class Variable:
    """An environment variable: a value, or the source of the value."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^=\x00]+$")]
    """Name of the variable."""
    value: str | None = None
    """Value of the variable."""
    secret: KeyRef | None = None
    """Key of a Secret that holds the value."""
    config_map: KeyRef | None = None
    """Key of a ConfigMap that holds the value."""
    pod_field: str = ""
    """Field of the pod that holds the value, such as metadata.name."""
    description: str = ""
    """Text that forms show for the variable."""
    exclude: bool = False
    """Whether to remove the variable of this name that a template or policy adds."""


@record
class KeyRef:
    """A key of a ConfigMap or Secret in the same namespace."""

    name: str
    """Name of the object."""
    key: str = ""
    """Key in the object."""
