"""Compute resources that each pod of a workload requests.

Names of Run:ai's API and the fields here:

    gpuDevicesRequest                gpuDevices, or gpu when it is a whole number and nothing else is set
    gpuPortionRequest / Limit        gpu / gpuLimit
    gpuMemoryRequest / Limit         gpuMemory / gpuMemoryLimit
    gpuRequestType                   which of gpu, gpuMemory and migProfile is set
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


# A number of whole GPUs, or a fraction of one. In Python: thousandths.
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
    """A quantity of an extended resource, as device plugins advertise them."""

    resource: str
    """Name of the resource, such as rdma/hca."""
    quantity: str = ""
    """Quantity of the resource."""
    exclude: bool = False
    """Whether to remove the resource of this name that a template or policy adds."""


@record
class Compute:
    """Resources that one pod of a workload requests."""

    gpu: Gpu | None = None
    """Number of GPUs, such as 2, or a fraction of one, such as 0.5. With gpuDevices, the fraction of each."""
    gpu_limit: Portion | None = None
    """Fraction of a GPU up to which the pod may grow while the GPU is otherwise idle; at least gpu."""
    gpu_memory: Bytes | None = None
    """GPU memory on each device, such as 4G; an alternative to gpu."""
    gpu_memory_limit: Bytes | None = None
    """GPU memory up to which the pod may grow while it is free; at least gpuMemory."""
    gpu_devices: Positive | None = None
    """Number of GPUs of one node on which the fraction or the memory is requested; defaults to 1."""
    mig_profile: Annotated[str, Field(pattern=r"^[1-7]g\.[0-9]+gb$")] | None = None
    """MIG profile, such as 1g.5gb; an alternative to gpu."""
    mps: bool | None = None
    """Whether fractions of a GPU run under the NVIDIA Multi-Process Service."""
    cpu: Milli | None = None
    """Guaranteed number of CPU cores; defaults to one per GPU."""
    cpu_limit: Milli | None = None
    """Maximum number of CPU cores; no limit unless set."""
    memory: Bytes | None = None
    """Guaranteed CPU memory; defaults to 100Mi per GPU."""
    memory_limit: Bytes | None = None
    """Maximum CPU memory; a process that exceeds it is killed; no limit unless set."""
    large_shm: bool | None = None
    """Whether /dev/shm may grow to the memory of the node instead of 64Mi."""
    extended_resources: tuple[ExtendedResource, ...] = ()
    """Extended resources that the pod requests."""

    def faults(self, path: str) -> Iterator[Fault]:
        requests = [name for name in ("gpu", "gpu_memory", "mig_profile") if getattr(self, name) is not None]
        if len(requests) > 1:
            yield Fault(path, "must have only one of gpu, gpuMemory and migProfile")
        partial = self.gpu_memory is not None or (self.gpu is not None and 0 < self.gpu < units.GPU)
        if self.gpu_devices is not None and not partial:
            yield Fault(f"{path}.gpuDevices", "needs a part of a GPU (gpu below 1) or gpuMemory")
        if self.mps and not partial:
            yield Fault(f"{path}.mps", "needs a part of a GPU (gpu below 1) or gpuMemory")
        yield from _limit_faults(f"{path}.gpuLimit", self.gpu_limit, self.gpu, "gpu")
        yield from _limit_faults(f"{path}.gpuMemoryLimit", self.gpu_memory_limit, self.gpu_memory, "gpuMemory")
        yield from _limit_faults(f"{path}.cpuLimit", self.cpu_limit, self.cpu, "cpu")
        yield from _limit_faults(f"{path}.memoryLimit", self.memory_limit, self.memory, "memory")


def _limit_faults(path: str, limit: int | None, request: int | None, name: str) -> Iterator[Fault]:
    if limit is not None and request is not None and limit < request:
        yield Fault(path, f"must not be less than {name}")
