"""The security contexts of a workload's pod and container, as Kubernetes spells them. Unset fields are left out."""

from __future__ import annotations

from aliquot.api import Json
from aliquot.api.security import Security


def pod_security(security: Security) -> Json:
    context: Json = {
        "runAsUser": security.run_as_uid,
        "runAsGroup": security.run_as_gid,
        "supplementalGroups": list(security.supplemental_groups) or None,
        "runAsNonRoot": security.run_as_non_root,
    }
    if security.seccomp_profile_type is not None:
        context["seccompProfile"] = {"type": security.seccomp_profile_type}
    return {key: value for key, value in context.items() if value is not None}


def container_security(security: Security) -> Json:
    context: Json = {
        "readOnlyRootFilesystem": security.read_only_root_filesystem,
        "allowPrivilegeEscalation": security.allow_privilege_escalation,
    }
    if security.capabilities:
        context["capabilities"] = {"add": list(security.capabilities)}
    return {key: value for key, value in context.items() if value is not None}
