"""What part of a GPU a pod asks for, read from its JSON at the door: every fault with its path and what to write.

is_part     whether it asks for one at all, by any of the names
part_of     the request; `Invalid` in one line otherwise
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
    """Of each of so many devices: a fraction, or an amount of memory."""

    milli: int = 0
    memory_mib: int = 0
    devices: int = 1
    wish: SharingOptions = field(default_factory=SharingOptions)

    @property
    def mode(self) -> ComputeMode:
        return self.wish.mode or ComputeMode.TIMESHARING


def asks_for_fraction(marks: Mapping[str, str]) -> bool:
    return any(key in marks for key in (*FRACTION_ANNOTATIONS, *MEMORY_ANNOTATIONS))


def parse_fraction_request(pod: Json) -> FractionRequest:
    """Of a pod that asks for one."""
    marks = (pod.get("metadata") or {}).get("annotations") or {}
    reader = _Reader(marks)
    part = FractionRequest(
        milli=reader.read(FRACTION_ANNOTATIONS, _fraction, 0),
        memory_mib=reader.read(MEMORY_ANNOTATIONS, _mib, 0),
        devices=reader.read(DEVICE_COUNT_ANNOTATIONS, _count, 1),
        wish=SharingOptions(
            limit_milli=reader.read((labels.GPU_FRACTION_LIMIT,), _limit, None),
            limit_mib=reader.read((labels.GPU_MEMORY_LIMIT_MIB,), _mib, None),
            mode=reader.read((labels.GPU_COMPUTE_MODE,), _mode, None),
        ),
    )
    faults = [*reader.faults, *_contradictions(part, pod)]
    if faults:
        raise Invalid.because("pod", faults)
    return part


class _Reader:
    def __init__(self, marks: Mapping[str, str]) -> None:
        self._marks = marks
        self.faults: list[Fault] = []

    def read(self, keys: tuple[str, ...], parse: Callable[[str], T], default: Any) -> Any:
        """By the first of its names that is there."""
        key = next((key for key in keys if key in self._marks), None)
        if key is None:
            return default
        try:
            return parse(self._marks[key])
        except ValueError as exc:
            self.faults.append(Fault(_path(key), str(exc)))
            return default


def _path(key: str) -> str:
    return f"metadata.annotations[{key!r}]"


def _fraction(text: str) -> int:
    milli = units.milli(text)
    if not 0 < milli < GPU:
        hint = f"whole GPUs are asked for with the limit {labels.GPU_RESOURCE}"
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
    offered = [mode.value for mode in ComputeMode if mode is not ComputeMode.MPS]
    if text == ComputeMode.MPS.value:
        raise ValueError(f"mps is not offered on Kubernetes; one of: {', '.join(offered)}")
    if text not in offered:
        raise ValueError(f"must be one of {', '.join(offered)}, not {text!r}")
    return ComputeMode(text)


def _contradictions(part: FractionRequest, pod: Json) -> Iterator[Fault]:
    spec = pod.get("spec") or {}
    if part.milli and part.memory_mib:
        yield Fault("metadata.annotations", "must have only one of a fraction and an amount of GPU memory")
    if part.wish.limit_milli is not None and part.wish.limit_milli < part.milli:
        yield Fault(_path(labels.GPU_FRACTION_LIMIT), "must not be less than the fraction itself")
    if part.wish.limit_mib is not None and part.wish.limit_mib < part.memory_mib:
        yield Fault(_path(labels.GPU_MEMORY_LIMIT_MIB), "must not be less than the amount itself")
    if spec.get("nodeName"):
        yield Fault("spec.nodeName", "must be empty: a part of a GPU is given by the scheduler")
    for kind in ("initContainers", "containers"):
        for place, container in enumerate(spec.get(kind) or ()):
            whole = sorted(_whole(container))
            if whole:
                path = f"spec.{kind}[{place}].resources"
                yield Fault(path, f"must not ask for {' and '.join(whole)} beside a part of a GPU: keep one of them")


def _whole(container: Json) -> set[str]:
    """Resources that are GPUs of their own."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    names = (name for name, amount in asked.items() if str(amount) != "0")
    return {name for name in names if name == labels.GPU_RESOURCE or name.startswith(labels.MIG_RESOURCE_PREFIX)}
