"""A minimal object of each kind."""

from __future__ import annotations

from aliquot.api import KINDS
from aliquot.store.driver import AnyKind
from api.http_client import Api, Json, named, unique

_POD: Json = {"containers": [{"name": "main", "image": "none"}]}
_CLAIM: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_RULE: Json = {"subject": {"kind": "user", "name": "nobody"}, "role": "viewer", "scope": {"kind": "cluster"}}
SPECS: dict[str, Json] = {
    "Department": {"quota": {"gpu": 4}},
    "Project": {"quota": {"gpu": 2}},
    "NodePool": {"labelKey": "pool", "labelValue": "x"},
    "SchedulingPolicy": {"spare": "quota"},
    "Workload": {"type": "training", "image": "none"},
    "Template": {"description": "first"},
    "Policy": {"description": "first"},
    "User": {"email": "a@example.com"},
    "AccessRule": _RULE,
    "Token": {"user": "admin"},
    "Namespace": {},
    "Node": {},
    "Pod": _POD,
    "Service": {"ports": [{"port": 80}], "selector": {"app": "x"}},
    "PersistentVolumeClaim": _CLAIM,
    "Lease": {"holderIdentity": "a"},
}
# A valid status of each kind.
STATUSES: dict[str, Json] = {
    "Department": {"phase": "Ready"},
    "NodePool": {"phase": "Ready"},
    "SchedulingPolicy": {"pools": ["default"]},
    "Workload": {"phase": "Running"},
    "Template": {"conditions": [{"type": "Ready", "status": "True"}]},
    "Policy": {"phase": "Ready"},
    "User": {"lastLogin": "2026-01-01T00:00:00Z"},
    "AccessRule": {"conditions": [{"type": "Ready", "status": "True"}]},
    "Token": {"lastUsed": "2026-01-01T00:00:00Z"},
    "Pod": {"phase": "Running"},
}


def path_of(kind: AnyKind, namespace_path: str) -> str:
    return f"{namespace_path}/{kind.plural}" if kind.namespaced else kind.plural


def sample(kind: AnyKind, namespace_path: str, name: str = "") -> Json:
    created = named(name or unique("o"), SPECS.get(kind.name))
    if kind.name == "Event":
        namespace = namespace_path.rpartition("/")[2]
        created["involvedObject"] = {"kind": "Pod", "name": "x", "namespace": namespace}
    return created


def create(api: Api, kind: AnyKind, namespace_path: str) -> tuple[str, Json]:
    """Creates an object of the kind; returns its path and the response."""
    path = path_of(kind, namespace_path)
    created = api.post(path, sample(kind, namespace_path)).ok(201)
    return f"{path}/{created['metadata']['name']}", created


EVERY_KIND = [kind.name for kind in KINDS]
OUR_KINDS = [kind.name for kind in KINDS if kind.is_custom_resource]
