"""The GPU fraction that a pod's annotations ask for, read from its JSON at admission.

asks_for_fraction         whether the pod asks for a fraction, under any of the annotations' names
parse_fraction_request    the request; `Invalid` with the path of every fault
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aliquot import labels, units
from aliquot.api import Json
from aliquot.errors import Fault, Invalid
from aliquot.gpu.fractions import ComputeMode, SharingOptions
from aliquot.gpu.limits_file import MAX_DEVICES
from aliquot.units import GPU

T = TypeVar("T")

FRACTION_ANNOTATIONS = (labels.GPU_FRACTION, *labels.GPU_FRACTION_ALIASES)
MEMORY_ANNOTATIONS = (labels.GPU_MEMORY_MIB, *labels.GPU_MEMORY_ALIASES)
DEVICE_COUNT_ANNOTATIONS = (labels.GPU_DEVICES, *labels.GPU_DEVICES_ALIASES)


@dataclass(frozen=True, slots=True)
class FractionRequest:
    """A fraction, or an amount of memory, of each of `devices` GPUs."""

    milli: int = 0
    memory_mib: int = 0
    devices: int = 1
    options: SharingOptions = field(default_factory=SharingOptions)

    @property
    def mode(self) -> ComputeMode:
        return self.options.mode or ComputeMode.TIMESHARING


def asks_for_fraction(annotations: Mapping[str, str]) -> bool:
    return any(key in annotations for key in (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS))


def parse_fraction_request(pod: Json) -> FractionRequest:
    """The request of a pod for which `asks_for_fraction` is true."""
    reader = _AnnotationReader((pod.get("metadata") or {}).get("annotations") or {})
    request = FractionRequest(
        milli=reader.read(FRACTION_ANNOTATIONS, _fraction, 0),
        memory_mib=reader.read(MEMORY_ANNOTATIONS, _mib, 0),
        devices=reader.read(DEVICE_COUNT_ANNOTATIONS, _count, 1),
        options=SharingOptions(
            limit_milli=reader.read((labels.GPU_FRACTION_LIMIT,), _limit, None),
            limit_mib=reader.read((labels.GPU_MEMORY_LIMIT_MIB,), _mib, None),
            mode=reader.read((labels.GPU_COMPUTE_MODE,), _mode, None),
        ),
    )
    faults = [*reader.faults, *_contradictions(request, pod)]
    if faults:
        raise Invalid.because("pod", faults)
    return request


class _AnnotationReader:
    """Parses annotations and collects their faults."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self.faults: list[Fault] = []

    def read(self, keys: tuple[str, ...], parse: Callable[[str], T], default: Any) -> Any:
        """The value of the first of these annotations that is set."""
        key = next((key for key in keys if key in self._annotations), None)
        if key is None:
            return default
        try:
            return parse(self._annotations[key])
        except ValueError as exc:
            self.faults.append(Fault(_path(key), str(exc)))
            return default


def _path(key: str) -> str:
    return f"metadata.annotations[{key!r}]"


def _fraction(text: str) -> int:
    milli = units.milli(text)
    if not 0 < milli < GPU:
        hint = f"for whole GPUs set the limit {labels.GPU_RESOURCE}"
        raise ValueError(f"must be more than 0 and less than 1, not {text!r}; {hint}")
    return milli


def _limit(text: str) -> int:
    milli = units.milli(text)
    if not 0 < milli <= GPU:
        raise ValueError(f"must be more than 0 and at most 1, not {text!r}")
    return milli


def _mib(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:12]) > 0 and len(text) <= 12):
        raise ValueError(f"must be a whole number of MiB such as 4096, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 2 and 1 <= int(text) <= MAX_DEVICES):
        raise ValueError(f"must be a number of GPUs from 1 to {MAX_DEVICES}, not {text!r}")
    return int(text)


def _mode(text: str) -> ComputeMode:
    supported = [mode.value for mode in ComputeMode if mode is not ComputeMode.MPS]
    if text == ComputeMode.MPS.value:
        raise ValueError(f"mps is not supported on Kubernetes; use one of: {', '.join(supported)}")
    if text not in supported:
        raise ValueError(f"must be one of {', '.join(supported)}, not {text!r}")
    return ComputeMode(text)


def _contradictions(request: FractionRequest, pod: Json) -> Iterator[Fault]:
    spec = pod.get("spec") or {}
    if request.milli and request.memory_mib:
        yield Fault("metadata.annotations", "must have only one of a fraction and an amount of GPU memory")
    if request.options.limit_milli is not None and request.options.limit_milli < request.milli:
        yield Fault(_path(labels.GPU_FRACTION_LIMIT), "must not be less than the fraction itself")
    if request.options.limit_mib is not None and request.options.limit_mib < request.memory_mib:
        yield Fault(_path(labels.GPU_MEMORY_LIMIT_MIB), "must not be less than the amount itself")
    if spec.get("nodeName"):
        yield Fault("spec.nodeName", "must be empty: the scheduler assigns GPU fractions")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            whole = sorted(_gpu_resources(container))
            if whole:
                text = f"must not ask for {' and '.join(whole)} together with a GPU fraction: keep one of them"
                yield Fault(f"spec.{kind}[{index}].resources", text)


def _gpu_resources(container: Json) -> set[str]:
    """The resources of a container that are whole GPUs or MIG slices."""
    resources = container.get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    names = (name for name, amount in requested.items() if str(amount) != "0")
    return {name for name in names if name == labels.GPU_RESOURCE or name.startswith(labels.MIG_RESOURCE_PREFIX)}
