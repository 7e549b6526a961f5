"""Where a workload's data comes from and goes to. Each entry is one mount."""

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
    """A folder of the node."""

    path: MountPath
    """Folder on the node."""
    mount_path: MountPath
    """Where the container sees it."""
    name: str = ""
    """What templates and policies call it."""
    read_only: bool | None = None
    """Whether the container may only read."""
    mount_propagation: Propagation | None = None
    """Whether mounts made on the node later show up in the container."""


@record
class Nfs:
    """A folder of a file server."""

    server: str
    """Name or address of the server."""
    path: MountPath
    """Folder on the server."""
    mount_path: MountPath
    """Where the container sees it."""
    name: str = ""
    """What templates and policies call it."""
    read_only: bool | None = None
    """Whether the container may only read."""


@record
class ClaimMount:
    """A volume claim, one that exists or one that is made for the workload."""

    path: MountPath
    """Where the container sees it."""
    claim_name: Interned = ""
    """Name of the claim; made up for a new one unless given."""
    name: str = ""
    """What templates and policies call it."""
    existing: bool | None = None
    """Whether the claim must already be there; one that was made for the workload goes with it."""
    ephemeral: bool | None = None
    """Whether a claim made for the workload also goes when it is stopped."""
    storage_class: str = ""
    """Storage class of a new claim; the cluster's default unless given."""
    size: Bytes | None = None
    """Size of a new claim, such as 10Gi."""
    access_modes: tuple[AccessMode, ...] = ()
    """Who may mount a new claim at once; ReadWriteOnce unless given."""
    volume_mode: Literal["Filesystem", "Block"] | None = None
    """Whether a new claim is a file system or a raw device; Filesystem unless given."""
    read_only: bool | None = None
    """Whether the container may only read."""

    def faults(self, path: str) -> Iterator[Fault]:
        if self.existing and not self.claim_name:
            yield Fault(f"{path}.claimName", "is required for a claim that exists")
        if self.existing is False and self.size is None:
            yield Fault(f"{path}.size", "is required for a new claim")


@record
class Git:
    """A repository, fetched before the container starts and kept up to date."""

    repository: str
    """URL of the repository."""
    path: MountPath | None = None
    """Where the container sees it; /code unless given."""
    branch: str = ""
    """Branch to follow."""
    revision: str = ""
    """Revision to stay at; HEAD unless given."""
    username: str = ""
    """User name at the server."""
    secret: str = ""
    """Secret with the keys user and password."""
    name: str = ""
    """What templates and policies call it."""


@record
class S3:
    """A bucket."""

    bucket: str
    """Name of the bucket."""
    path: MountPath
    """Where the container sees it."""
    url: str = ""
    """Address of the service; Amazon's unless given."""
    secret: str = ""
    """Secret with the keys AccessKeyId and SecretKey."""
    name: str = ""
    """What templates and policies call it."""


@record
class FilesOf:
    """The keys of a ConfigMap or Secret, as files."""

    source: str
    """Name of the ConfigMap or Secret."""
    path: MountPath
    """Where the container sees them."""
    sub_path: str = ""
    """Only this key, as one file."""
    default_mode: int | None = None
    """Permission bits of the files."""
    name: str = ""
    """What templates and policies call it."""


@record
class DataVolume:
    """A volume that another project shares."""

    volume: str
    """Name of the data volume."""
    path: MountPath
    """Where the container sees it."""
    name: str = ""
    """What templates and policies call it."""


@record
class Storage:
    """Everything that is mounted."""

    host_path: tuple[HostPath, ...] = ()
    """Folders of the node."""
    nfs: tuple[Nfs, ...] = ()
    """Folders of file servers."""
    pvc: tuple[ClaimMount, ...] = ()
    """Volume claims."""
    git: tuple[Git, ...] = ()
    """Repositories."""
    s3: tuple[S3, ...] = ()
    """Buckets."""
    config_map: tuple[FilesOf, ...] = ()
    """ConfigMaps as files."""
    secret: tuple[FilesOf, ...] = ()
    """Secrets as files."""
    data_volume: tuple[DataVolume, ...] = ()
    """Volumes that other projects share."""
    mount_propagation: Propagation | None = None
    """For every folder of the node that does not say."""
    exclude: Strings = ()
    """Names of entries that a template or policy adds and that are left out."""


@record
class Variable:
    """One environment variable: a value, or where it is read from."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^=\x00]+$")]
    """Name of the variable."""
    value: str | None = None
    """Its value."""
    secret: KeyRef | None = None
    """A key of a Secret that holds the value."""
    config_map: KeyRef | None = None
    """A key of a ConfigMap that holds the value."""
    pod_field: str = ""
    """A field of the pod, such as metadata.name."""
    description: str = ""
    """What to fill in, for forms."""
    exclude: bool = False
    """Leaves out the variable of this name that a template or policy adds."""


@record
class KeyRef:
    """The name of something in the same namespace, and a key in it."""

    name: str
    """Name of the object."""
    key: str = ""
    """Key inside the object."""
