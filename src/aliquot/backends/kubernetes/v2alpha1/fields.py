"""The table of fields: for every field of `run.ai/v2alpha1`, its path in a Workload's spec and how its value is parsed.

A field is `{value: ...}`, or `{items: {NAME: {value: ...}}}` for a list. A parser raises `ValueError` with what the
value must be. All other checks are those of the Workload.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aliquot.api import Json

Parse = Callable[[Any], Any]
ParseItem = Callable[[str, Any], Any]


def as_is(value: Any) -> Any:
    return value


def text(value: Any) -> str:
    if isinstance(value, (dict, list, bool)) or value is None:
        raise ValueError(f"must be text, not {value!r}")
    return str(value)


def shell_words(value: Any) -> list[str]:
    """A command line, split as a shell does."""
    if isinstance(value, list):
        return [text(word) for word in value]
    try:
        return shlex.split(text(value))
    except ValueError as exc:
        raise ValueError(f"must be words as a shell reads them: {str(exc).lower()}") from None


def names(value: Any) -> list[str]:
    """`a b`, `a,b` or a list."""
    return [text(name) for name in value] if isinstance(value, list) else text(value).replace(",", " ").split()


def numbers(value: Any) -> list[int]:
    """`1000;2000` or a list."""
    items = value if isinstance(value, list) else text(value).replace(",", ";").split(";")
    try:
        return [int(item) for item in items if str(item).strip()]
    except (TypeError, ValueError):
        raise ValueError(f"must be numbers such as 1000;2000, not {value!r}") from None


def pull_policy(value: Any) -> str:
    spelled = {"always": "Always", "ifnotpresent": "IfNotPresent", "never": "Never"}
    return spelled.get(text(value).lower(), text(value))


def lower(value: Any) -> str:
    return text(value).lower()


def propagation(value: Any) -> str:
    return ("HostToContainer" if value else "None") if isinstance(value, bool) else text(value)


@dataclass(frozen=True, slots=True)
class Field:
    path: str  # in a Workload's spec
    parse: Parse = as_is
    schema_type: str = ""  # of the value in the custom resource: string, boolean; empty: anything


@dataclass(frozen=True, slots=True)
class Items:
    path: str
    parse: ParseItem
    is_mapping: bool = False  # by name; otherwise a list


def _texts(*names: str) -> dict[str, Field]:
    return {name: Field(name, text, "string") for name in names}


def _switches(*names: str, under: str = "") -> dict[str, Field]:
    return {name: Field(under + name, as_is, "boolean") for name in names}


FIELDS: dict[str, Field] = {
    **_texts("image", "workingDir", "nodeType", "notebookToken", "tensorboardLogdir", "ingressUrl", "namePrefix"),
    **_switches("active", "createHomeDir", "stdin", "tty", "jupyter", "tensorboard", "preemptible"),
    **_switches("terminateAfterPreemption"),
    **_switches("largeShm", "mps", under="compute."),
    **_switches("allowPrivilegeEscalation", "runAsUser", "runAsNonRoot", "hostIpc", "hostNetwork", under="security."),
    "imagePullPolicy": Field("imagePullPolicy", pull_policy, "string"),
    "command": Field("command", shell_words),
    "arguments": Field("args", shell_words),
    "username": Field("user", text, "string"),
    "nodePools": Field("nodePools", names),
    "nodePool": Field("nodePools", names),
    "serviceType": Field("serviceType", lower, "string"),
    "priorityClass": Field("priorityClass", text, "string"),
    "backoffLimit": Field("backoffLimit"),
    "completions": Field("completions"),
    "parallelism": Field("parallelism"),
    "preemptionLimit": Field("preemptionLimit"),
    "autoDeletionTimeAfterCompletionSeconds": Field("autoDeletionTimeAfterCompletionSeconds"),
    "ttlAfterFinish": Field("autoDeletionTimeAfterCompletionSeconds"),
    "cpu": Field("compute.cpu"),
    "cpuLimit": Field("compute.cpuLimit"),
    "memory": Field("compute.memory"),
    "memoryLimit": Field("compute.memoryLimit"),
    "gpu": Field("compute.gpu"),
    "gpuDevices": Field("compute.gpuDevices"),
    "gpuLimit": Field("compute.gpuLimit"),
    "gpuMemory": Field("compute.gpuMemory"),
    "gpuMemoryLimit": Field("compute.gpuMemoryLimit"),
    "migProfile": Field("compute.migProfile", text, "string"),
    "runAsUid": Field("security.runAsUid"),
    "runAsGid": Field("security.runAsGid"),
    "supplementalGroups": Field("security.supplementalGroups", numbers),
    "capabilities": Field("security.capabilities", names),
    "seccompProfileType": Field("security.seccompProfileType", text, "string"),
    "mountPropagation": Field("storage.mountPropagation", propagation),
}


# --- items


def _object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {value!r}")
    return dict(value)


def _renamed(value: Json, **names: str) -> Json:
    """With the Workload's names for keys that differ."""
    return {names.get(key, key): item for key, item in value.items()}


def _variable(name: str, value: Any) -> Json:
    variable = text(value)
    if not variable.startswith("SECRET:"):
        return {"name": name, "value": variable}
    secret, comma, key = variable.removeprefix("SECRET:").partition(",")
    if not comma:
        raise ValueError(f"must be SECRET:secret,key, not {variable!r}")
    return {"name": name, "secret": {"name": secret, "key": key}}


def _resource(name: str, value: Any) -> Json:
    return {"resource": name, "quantity": text(value)}


def _port(name: str, value: Any) -> Json:
    port = _object(value)
    if "serviceType" in port:
        port["serviceType"] = lower(port["serviceType"])
    return {"name": name, **port}


def _claim(name: str, value: Any) -> Json:
    return {"name": name, **_renamed(_object(value), existingPvc="existing")}


def _host_path(name: str, value: Any) -> Json:
    return {"name": name, **_object(value)}


def _nfs(name: str, value: Any) -> Json:
    return {"name": name, **_renamed(_object(value), nfsServer="server")}


def _git(name: str, value: Any) -> Json:
    git = _renamed(_object(value), source="repository", target="path", rev="revision")
    if "password" in git:
        raise ValueError("must have no password: give `secret`, the name of a Secret that holds it")
    return {"name": name, **git}


def _s3(name: str, value: Any) -> Json:
    return {"name": name, **_renamed(_object(value), target="path")}


def _toleration(name: str, value: Any) -> Json:
    return {"name": name, **_renamed(_object(value), seconds="tolerationSeconds")}


ITEMS: dict[str, Items] = {
    "environment": Items("environment", _variable),
    "labels": Items("labels", lambda name, value: text(value), is_mapping=True),
    "annotations": Items("annotations", lambda name, value: text(value), is_mapping=True),
    "ports": Items("ports", _port),
    "exposedUrls": Items("exposedUrls", lambda name, value: _object(value)),
    "extendedResources": Items("compute.extendedResources", _resource),
    "pvcs": Items("storage.pvc", _claim),
    "volumes": Items("storage.hostPath", _host_path),
    "nfs": Items("storage.nfs", _nfs),
    "gitSync": Items("storage.git", _git),
    "s3": Items("storage.s3", _s3),
    "tolerations": Items("tolerations", _toleration),
}

# Fields that translation.py reads itself.
SPECIAL = ("name", "baseWorkload", "usage", "podAffinity", "podAffinitySchedulingRule", "podAffinityTopology")

# Fields without a counterpart in a Workload, and what to write instead.
_DISTRIBUTED = "is for distributed training: write a Workload of aliquot.dev/v1 with spec.distributed"
REFUSED = {
    "userId": "is ignored: the submitting user is known from sign-in",
    **dict.fromkeys(("mpi", "processes", "slotsPerWorker", "workers", "mpiJob", "pyTorchJob", "jobType"), _DISTRIBUTED),
    **dict.fromkeys(("noMaster", "nonPreemptible", "runPolicy"), _DISTRIBUTED),
}
UNKNOWN = "is an unknown field and has no effect; remove it"
