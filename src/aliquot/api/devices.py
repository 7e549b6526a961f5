"""GPUs of nodes, and the shares of them that pods hold, in the annotation `aliquot.dev/devices`.

Kubernetes knows only the number of GPUs of a node. The annotation has their index, model, memory and health: on a node
as a list of `Device`, on a pod as a list of `DeviceShare`. For a node without the annotation (where only NVIDIA's
device plugin runs), devices are derived from the capacity and from the labels of GPU feature discovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ValidationError

from aliquot import labels, units
from aliquot.api.field_types import EMPTY_MAP, Count
from aliquot.api.node import Node
from aliquot.api.pod import Pod
from aliquot.api.serialization import adapter, faults_of, record
from aliquot.errors import Fault, Invalid

T = TypeVar("T")


@record
class Mig:
    """The MIG partitioning of a GPU."""

    profiles: Mapping[str, Count] = EMPTY_MAP
    """Number of MIG slices by profile, such as {"1g.5gb": 2}."""
    dynamic: bool = False
    """Whether the platform may change the partitioning."""


@record
class Device:
    """A GPU of a node."""

    index: Count
    """Index of the GPU on the node."""
    uuid: str = ""
    """UUID of the GPU. It does not change when the index does."""
    model: str = ""
    """Model of the GPU, such as NVIDIA A100-SXM4-40GB."""
    memory_mib: Count = 0
    """Memory of the GPU in MiB; 0 if unknown."""
    mig: Mig | None = None
    """MIG partitioning; absent if the GPU is not partitioned."""
    healthy: bool = True
    """Whether the GPU may be used."""


@record
class DeviceShare:
    """The part of a GPU that a pod holds."""

    index: Count
    """Index of the GPU on the node."""
    milli: Count
    """Thousandths of the GPU."""
    memory_mib: Count = 0
    """Memory on the GPU in MiB."""
    uuid: str = ""
    """UUID of the GPU, if known."""


def _unique_indices(items: tuple[T, ...]) -> tuple[T, ...]:
    indices = [getattr(item, "index", None) for item in items]
    for position, index in enumerate(indices):
        if index in indices[:position]:
            raise ValueError(f"has GPU {index} twice")
    return items


_Devices = Annotated[tuple[Device, ...], AfterValidator(_unique_indices)]
_Shares = Annotated[tuple[DeviceShare, ...], AfterValidator(_unique_indices)]


def devices_of(node: Node) -> tuple[Device, ...]:
    """The GPUs of a node, in the order of the annotation; `Invalid` when the annotation is malformed."""
    text = node.metadata.annotations.get(labels.DEVICES)
    if text is None:
        return _devices_from_capacity(node)
    devices: tuple[Device, ...] = _parse(f"node {node.metadata.name}", text, _Devices)
    return devices


def shares_of(pod: Pod) -> tuple[DeviceShare, ...]:
    """The GPU shares of a pod; none before it is bound. `Invalid` when the annotation is malformed."""
    text = pod.metadata.annotations.get(labels.DEVICES)
    if text is None:
        return ()
    shares: tuple[DeviceShare, ...] = _parse(f"pod {pod.metadata.namespace}/{pod.metadata.name}", text, _Shares)
    return shares


def devices_text(devices: Iterable[Device]) -> str:
    """The value of a node's annotation."""
    return _text(tuple(devices), _Devices)


def shares_text(shares: Iterable[DeviceShare]) -> str:
    """The value of a pod's annotation."""
    return _text(tuple(shares), _Shares)


_MAX_DEVICES = 1024  # more than any machine has; a wrong number must not fill our memory


def _devices_from_capacity(node: Node) -> tuple[Device, ...]:
    node_labels = node.metadata.labels
    count = min(_number(node.status.capacity.get(labels.GPU_RESOURCE)), _MAX_DEVICES)
    model, memory = node_labels.get(labels.GPU_PRODUCT, ""), _number(node_labels.get(labels.GPU_MEMORY))
    usable = _number(node.status.allocatable.get(labels.GPU_RESOURCE, str(count)))
    # The device plugin reports how many are healthy, not which ones, so the indices are arbitrary.
    return tuple(Device(index=i, model=model, memory_mib=memory, healthy=i < usable) for i in range(count))


def _number(text: str | None) -> int:
    # Other programs write these values. One that is not a number counts as absent.
    try:
        return int(units.quantity(text or "0"))
    except ValueError:
        return 0


def _parse(owner: str, text: str, type_: Any) -> Any:
    path = f"metadata.annotations[{labels.DEVICES!r}]"
    try:
        return adapter(type_).validate_python(json.loads(text))
    except ValidationError as exc:
        # The value is a list, so the paths of its faults begin with an index.
        faults = [Fault(path + fault.path, fault.text) for fault in faults_of(exc)]
    except (ValueError, RecursionError) as exc:
        faults = [Fault(path, f"must be JSON: {exc}")]
    raise Invalid.because(owner, faults)


def _text(items: Any, type_: Any) -> str:
    data = adapter(type_).dump_python(items, mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
