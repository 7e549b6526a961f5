"""GPUs of nodes and the parts of them that pods hold, as the annotation `aliquot.dev/devices` carries them.

Kubernetes knows only a number of GPUs per node. Which ones, how large and how well is in the annotation: on a node
a list of `Device`, on a pod a list of `DeviceShare`. A node without it (where only NVIDIA's device plugin runs) gets
its devices from its capacity and from the labels that GPU feature discovery writes.
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
    """How a GPU is partitioned."""

    profiles: Mapping[str, Count] = EMPTY_MAP
    """Slices that exist, such as {"1g.5gb": 2}."""
    dynamic: bool = False
    """Whether the platform may partition it anew."""


@record
class Device:
    """One GPU of a node."""

    index: Count
    """Its number on the node."""
    uuid: str = ""
    """Its own name; stays with the card."""
    model: str = ""
    """Such as NVIDIA A100-SXM4-40GB."""
    memory_mib: Count = 0
    """Its memory; 0 = not known."""
    mig: Mig | None = None
    """How it is partitioned; absent when it is not."""
    healthy: bool = True
    """Whether it may be used."""


@record
class DeviceShare:
    """What a pod holds of one GPU."""

    index: Count
    """Number of the GPU on the node."""
    milli: Count
    """Thousandths of it."""
    memory_mib: Count = 0
    """Memory on it."""
    uuid: str = ""
    """Its own name, where it is known."""


def _each_once(items: tuple[T, ...]) -> tuple[T, ...]:
    indices = [getattr(item, "index", None) for item in items]
    for position, index in enumerate(indices):
        if index in indices[:position]:
            raise ValueError(f"has GPU {index} twice")
    return items


_Devices = Annotated[tuple[Device, ...], AfterValidator(_each_once)]
_Shares = Annotated[tuple[DeviceShare, ...], AfterValidator(_each_once)]


def devices_of(node: Node) -> tuple[Device, ...]:
    """The GPUs of a node, as listed; `Invalid` when its annotation cannot be read."""
    text = node.metadata.annotations.get(labels.DEVICES)
    if text is None:
        return _counted(node)
    found: tuple[Device, ...] = _read(f"node {node.metadata.name}", text, _Devices)
    return found


def shares_of(pod: Pod) -> tuple[DeviceShare, ...]:
    """The GPUs a pod was given; none before it is placed. `Invalid` when its annotation cannot be read."""
    text = pod.metadata.annotations.get(labels.DEVICES)
    if text is None:
        return ()
    found: tuple[DeviceShare, ...] = _read(f"pod {pod.metadata.namespace}/{pod.metadata.name}", text, _Shares)
    return found


def devices_text(devices: Iterable[Device]) -> str:
    """The annotation for a node."""
    return _written(tuple(devices), _Devices)


def shares_text(shares: Iterable[DeviceShare]) -> str:
    """The annotation for a pod."""
    return _written(tuple(shares), _Shares)


_MOST = 1024  # no machine has as many; a wrong number must not fill our memory


def _counted(node: Node) -> tuple[Device, ...]:
    marks = node.metadata.labels
    count = min(_whole(node.status.capacity.get(labels.GPU_RESOURCE)), _MOST)
    model, memory = marks.get(labels.GPU_PRODUCT, ""), _whole(marks.get(labels.GPU_MEMORY))
    usable = _whole(node.status.allocatable.get(labels.GPU_RESOURCE, str(count)))
    # The device plugin says how many are well, not which; any choice of indices is as good.
    return tuple(Device(index=i, model=model, memory_mib=memory, healthy=i < usable) for i in range(count))


def _whole(text: str | None) -> int:
    # Other programs write these; what is no number is as good as absent.
    try:
        return int(units.quantity(text or "0"))
    except ValueError:
        return 0


def _read(owner: str, text: str, shape: Any) -> Any:
    path = f"metadata.annotations[{labels.DEVICES!r}]"
    try:
        return adapter(shape).validate_python(json.loads(text))
    except ValidationError as exc:
        # Paths in it begin with an index: the whole is a list.
        faults = [Fault(path + fault.path, fault.text) for fault in faults_of(exc)]
    except (ValueError, RecursionError) as exc:
        faults = [Fault(path, f"must be JSON: {exc}")]
    raise Invalid.because(owner, faults)


def _written(items: Any, shape: Any) -> str:
    data = adapter(shape).dump_python(items, mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)
