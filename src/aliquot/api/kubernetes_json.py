"""Kubernetes' own wire shape: names with capitals that camelCase would not give, and times with microseconds."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Annotated, TypeVar, dataclass_transform

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from aliquot import units
from aliquot.api.base import record, wire_form

T = TypeVar("T")

_CAPITALS = {
    "pod_ip": "podIP",
    "host_ip": "hostIP",
    "cluster_ip": "clusterIP",
    "host_ipc": "hostIPC",
    "host_pid": "hostPID",
    "container_id": "containerID",
    "image_id": "imageID",
    "machine_id": "machineID",
    "system_uuid": "systemUUID",
    "boot_id": "bootID",
    "provider_id": "providerID",
}


def _kube_name(name: str) -> str:
    return _CAPITALS.get(name) or to_camel(name)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def kube_record(cls: type[T]) -> type[T]:
    """A `record` with Kubernetes' field names."""
    made = record(cls)
    made.__pydantic_config__ = wire_form(_kube_name)  # type: ignore[attr-defined]  # read by pydantic
    return made


def _as_time(value: object) -> float:
    return units.timestamp(value)


def _micro_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# Kubernetes reads these times only with exactly six decimals.
MicroTime = Annotated[
    float,
    BeforeValidator(_as_time),
    PlainSerializer(_micro_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
