"""One small object of each kind, as short as the kind allows."""

from __future__ import annotations

from aliquot.api import KINDS
from aliquot.store.driver import AnyKind
from api.wire import Api, Json, named, unique

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
# Something that can be said of each kind's status.
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


def path_of(kind: AnyKind, here: str) -> str:
    return f"{here}/{kind.plural}" if kind.namespaced else kind.plural


def sample(kind: AnyKind, here: str, name: str = "") -> Json:
    made = named(name or unique("o"), SPECS.get(kind.name))
    if kind.name == "Event":
        namespace = here.rpartition("/")[2]
        made["involvedObject"] = {"kind": "Pod", "name": "x", "namespace": namespace}
    return made


def create(api: Api, kind: AnyKind, here: str) -> tuple[str, Json]:
    """A new object of the kind: its address and what the server said."""
    path = path_of(kind, here)
    made = api.post(path, sample(kind, here)).ok(201)
    return f"{path}/{made['metadata']['name']}", made


EVERY_KIND = [kind.name for kind in KINDS]
OUR_KINDS = [kind.name for kind in KINDS if kind.is_custom_resource]
