"""API types: every kind of object that users read and write, with its fields, validation, defaults and schemas.

Each kind has a module of its own; `kind_table.py` lists them all as `KINDS`. `serialization.py` and `field_types.py`
are what types are made of. `schema.py` generates JSON Schema, `crds.py` the custom resource definitions. Checks that
need other objects are in `aliquot.admission`. Import from here unless a type is not listed in `__all__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aliquot.api.access_rule import AccessRule, Scope, Subject
from aliquot.api.amounts import Amounts, Quota, Weights
from aliquot.api.compute import Compute
from aliquot.api.conditions import Condition
from aliquot.api.department import Department
from aliquot.api.devices import Device, DeviceShare, Mig, devices_of, devices_text, shares_of, shares_text
from aliquot.api.distributed import Distributed, Master
from aliquot.api.event import Event, ObjectReference
from aliquot.api.kind import Column, Kind, Kinds
from aliquot.api.kind_table import KINDS
from aliquot.api.lease import Lease
from aliquot.api.metadata import Metadata, Owner
from aliquot.api.namespace import Namespace
from aliquot.api.node import Node, Taint
from aliquot.api.node_pool import DEFAULT_POOL, NodePool
from aliquot.api.object_names import check_name
from aliquot.api.persistent_volume_claim import Claim
from aliquot.api.placement_strategy import Placement
from aliquot.api.pod import Container, Pod
from aliquot.api.policy import Policy
from aliquot.api.project import Project
from aliquot.api.queue import Terms, terms_in_pool
from aliquot.api.scheduling_constraints import Toleration
from aliquot.api.scheduling_policy import SchedulingPolicy
from aliquot.api.serialization import Json, decode, encode
from aliquot.api.service import Service
from aliquot.api.template import Template
from aliquot.api.token import Token
from aliquot.api.user import User
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
    "terms_in_pool",
    "to_json",
]


def to_json(obj: Any) -> Json:
    """Full JSON of an object: `apiVersion` and `kind` first, then as `encode`."""
    kind = KINDS.of(type(obj))
    return {"apiVersion": kind.api_version, "kind": kind.name, **encode(obj)}


def from_json(data: Mapping[str, Any], *, strict: bool = False) -> Any:
    """The object that a manifest describes, of the kind that it names; `Invalid` with every fault otherwise."""
    if not isinstance(data, Mapping):
        raise Invalid.because("manifest", [Fault("", "must be an object")])
    faults = [Fault(name, "is required") for name in ("apiVersion", "kind") if not data.get(name)]
    if faults:
        raise Invalid.because("manifest", faults)
    kind = KINDS.declared(data["apiVersion"], data["kind"])
    return decode(kind.type, data, strict=strict, what=kind.singular)
