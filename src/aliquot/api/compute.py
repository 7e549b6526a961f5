"""What one pod of a workload asks for.

The words of the REST API and of the command line, and ours:

    gpuDevicesRequest                gpuDevices, or gpu when it is a whole number and nothing else is said
    gpuPortionRequest / Limit        gpu / gpuLimit
    gpuMemoryRequest / Limit         gpuMemory / gpuMemoryLimit
    gpuRequestType                   which of gpu, gpuMemory and migProfile is there
    cpuCoreRequest / Limit           cpu / cpuLimit
    cpuMemoryRequest / Limit         memory / memoryLimit
    largeShmRequest                  largeShm
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from aliquot import units
from aliquot.api.field_types import THREE_DECIMALS, Bytes, Milli, Positive
from aliquot.api.serialization import record
from aliquot.errors import Fault


def _as_gpu(value: object) -> int:
    count = units.milli(value)
    if count > units.GPU and count % units.GPU:
        raise ValueError(f"must be a whole number of GPUs, or a fraction of one below 1, not {value}")
    return count


def _as_portion(value: object) -> int:
    count = units.milli(value)
    if count > units.GPU:
        raise ValueError(f"must be a part of one GPU, at most 1, not {value}")
    return count


# Whole GPUs, or a part of one; thousandths inside.
Gpu = Annotated[
    int,
    BeforeValidator(_as_gpu),
    PlainSerializer(units.whole_units, return_type=int | float),
    WithJsonSchema(
        {
            "type": "number",
            "minimum": 0,
            "x-crd": {
                "x-kubernetes-validations": [
                    THREE_DECIMALS,
                    {
                        "rule": "self <= 1.0 || self == double(int(self))",
                        "message": "must be a whole number of GPUs, or a fraction of one below 1",
                    },
                ],
            },
        }
    ),
]
Portion = Annotated[
    int,
    BeforeValidator(_as_portion),
    PlainSerializer(units.whole_units, return_type=int | float),
    WithJsonSchema(
        {"type": "number", "minimum": 0, "maximum": 1, "x-crd": {"x-kubernetes-validations": [THREE_DECIMALS]}}
    ),
]


@record
class ExtendedResource:
    """An amount of a resource that a device plugin offers."""

    resource: str
    """Name of the resource, such as rdma/hca."""
    quantity: str = ""
    """How much of it."""
    exclude: bool = False
    """Leaves out the resource of this name that a template or policy adds."""


@record
class Compute:
    """What one pod asks for."""

    gpu: Gpu | None = None
    """GPUs: a whole number such as 2, or a part of one such as 0.5; with gpuDevices, the part of each."""
    gpu_limit: Portion | None = None
    """The part of a GPU it may grow to while the rest is idle; at least gpu."""
    gpu_memory: Bytes | None = None
    """GPU memory on each device, such as 4G; instead of gpu."""
    gpu_memory_limit: Bytes | None = None
    """GPU memory it may grow to while the rest is idle; at least gpuMemory."""
    gpu_devices: Positive | None = None
    """On how many GPUs of one node the part or the memory is wanted; 1 unless given."""
    mig_profile: Annotated[str, Field(pattern=r"^[1-7]g\.[0-9]+gb$")] | None = None
    """A MIG slice such as 1g.5gb; instead of gpu."""
    mps: bool | None = None
    """Whether the parts of a GPU run under NVIDIA's Multi-Process Service."""
    cpu: Milli | None = None
    """CPU cores guaranteed; one per GPU unless given."""
    cpu_limit: Milli | None = None
    """Most CPU cores; no limit unless given."""
    memory: Bytes | None = None
    """CPU memory guaranteed; 100Mi per GPU unless given."""
    memory_limit: Bytes | None = None
    """Most CPU memory; a process that takes more is killed; no limit unless given."""
    large_shm: bool | None = None
    """Whether /dev/shm may grow to the node's memory instead of 64Mi."""
    extended_resources: tuple[ExtendedResource, ...] = ()
    """Further resources that nodes offer."""

    def faults(self, path: str) -> Iterator[Fault]:
        asked = [name for name in ("gpu", "gpu_memory", "mig_profile") if getattr(self, name) is not None]
        if len(asked) > 1:
            yield Fault(path, "must have only one of gpu, gpuMemory and migProfile")
        partial = self.gpu_memory is not None or (self.gpu is not None and 0 < self.gpu < units.GPU)
        if self.gpu_devices is not None and not partial:
            yield Fault(f"{path}.gpuDevices", "needs a part of a GPU (gpu below 1) or gpuMemory")
        if self.mps and not partial:
            yield Fault(f"{path}.mps", "needs a part of a GPU (gpu below 1) or gpuMemory")
        yield from _above(f"{path}.gpuLimit", self.gpu_limit, self.gpu, "gpu")
        yield from _above(f"{path}.gpuMemoryLimit", self.gpu_memory_limit, self.gpu_memory, "gpuMemory")
        yield from _above(f"{path}.cpuLimit", self.cpu_limit, self.cpu, "cpu")
        yield from _above(f"{path}.memoryLimit", self.memory_limit, self.memory, "memory")


def _above(path: str, limit: int | None, request: int | None, name: str) -> Iterator[Fault]:
    if limit is not None and request is not None and limit < request:
        yield Fault(path, f"must not be less than {name}")
