"""What users read and write: every kind of object, validated, versioned, and small in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.api.access import AccessRule, Scope, Subject, Token, User
from aliquot.api.base import Json, Metadata, Owner, decode, encode
from aliquot.api.common import Amounts, Condition, Placement, Quota, Toleration, Weights
from aliquot.api.compute import Compute
from aliquot.api.devices import Device, DeviceShare, Mig, devices_of, devices_text, shares_of, shares_text
from aliquot.api.distributed import Distributed, Master
from aliquot.api.kinds import Column, Kind, Kinds
from aliquot.api.kubernetes_objects import Claim, Event, Lease, Namespace, Node, ObjectReference, Service, Taint
from aliquot.api.names import check_name
from aliquot.api.organisation import DEFAULT_POOL, Department, Project, Terms, terms
from aliquot.api.pod import Container, Pod
from aliquot.api.policy import Policy, Template
from aliquot.api.pools import NodePool, SchedulingPolicy
from aliquot.api.registry import KINDS
from aliquot.api.workload import Refusal, Workload
from aliquot.errors import Fault, Invalid

__all__ = [
    "DEFAULT_POOL",
    "KINDS",
    "AccessRule",
    "Amounts",
    "Claim",
    "Column",
    "Compute",
    "Condition",
    "Container",
    "Department",
    "Device",
    "DeviceShare",
    "Distributed",
    "Event",
    "Json",
    "Kind",
    "Kinds",
    "Lease",
    "Master",
    "Metadata",
    "Mig",
    "Namespace",
    "Node",
    "NodePool",
    "ObjectReference",
    "Owner",
    "Placement",
    "Pod",
    "Policy",
    "Project",
    "Quota",
    "Refusal",
    "SchedulingPolicy",
    "Scope",
    "Service",
    "Subject",
    "Taint",
    "Template",
    "Terms",
    "Token",
    "Toleration",
    "User",
    "Weights",
    "Workload",
    "check_name",
    "decode",
    "devices_of",
    "devices_text",
    "encode",
    "from_json",
    "shares_of",
    "shares_text",
    "terms",
    "to_json",
]


def to_json(obj: Any) -> Json:
    """Full JSON of an object: `apiVersion` and `kind` first, then as `encode`."""
    kind = KINDS.of(type(obj))
    return {"apiVersion": kind.api_version, "kind": kind.name, **encode(obj)}


def from_json(data: Mapping[str, Any], *, strict: bool = False) -> Any:
    """The object that a manifest describes, of the kind it says; `Invalid` with every fault otherwise."""
    if not isinstance(data, Mapping):
        raise Invalid.because("manifest", [Fault("", "must be an object")])
    faults = [Fault(name, "is required") for name in ("apiVersion", "kind") if not data.get(name)]
    if faults:
        raise Invalid.because("manifest", faults)
    kind = KINDS.declared(data["apiVersion"], data["kind"])
    return decode(kind.type, data, strict=strict, what=kind.word)
