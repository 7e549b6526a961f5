"""As whom a workload's pod runs, and what it may do, in Kubernetes' own shape."""

from __future__ import annotations

from aliquot.api import Json
from aliquot.api.security import Security


def pod_security(security: Security) -> Json:
    """Of the whole pod; empty where nothing is said."""
    said: Json = {
        "runAsUser": security.run_as_uid,
        "runAsGroup": security.run_as_gid,
        "supplementalGroups": list(security.supplemental_groups) or None,
        "runAsNonRoot": security.run_as_non_root,
    }
    if security.seccomp_profile_type is not None:
        said["seccompProfile"] = {"type": security.seccomp_profile_type}
    return {key: value for key, value in said.items() if value is not None}


def container_security(security: Security) -> Json:
    said: Json = {
        "readOnlyRootFilesystem": security.read_only_root_filesystem,
        "allowPrivilegeEscalation": security.allow_privilege_escalation,
    }
    if security.capabilities:
        said["capabilities"] = {"add": list(security.capabilities)}
    return {key: value for key, value in said.items() if value is not None}
