"""Lets the API server enforce that only the platform writes certain fields.

The REST API refuses a user who sets a pod's node or devices, or submits a workload under another user's name
(`Kind.protected_fields`). RBAC does not know fields, so with kubectl a user who may edit pods could write them.
A ValidatingAdmissionPolicy per kind closes that gap, from the same table. In the namespaces of projects these fields
may be set or changed only by users who may write the object's status, as in the REST API, and by Kubernetes' own
controllers, which copy what a permitted user wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from aliquot.api import KINDS, Json
from aliquot.backends.kubernetes.service_accounts import LABELS
from aliquot.backends.kubernetes.unstructured_kinds import ADMISSION_BINDING, ADMISSION_POLICY
from aliquot.errors import NotFound
from aliquot.labels import PROJECT, QUEUE_ALIASES
from aliquot.store.driver import AnyKind
from aliquot.store.drivers.kubernetes import KubernetesDriver

_CONTROLLERS: Final = "system:serviceaccounts:kube-system"
log = structlog.get_logger()


async def install(driver: KubernetesDriver) -> None:
    """Creates or updates the policies."""
    for kind in KINDS:
        if not kind.protected_fields:
            continue
        policy, binding = policy_for(kind)
        try:
            await driver.apply(ADMISSION_POLICY, policy)
            await driver.apply(ADMISSION_BINDING, binding)
        except NotFound:
            log.warning(
                "no ValidatingAdmissionPolicy here: users may edit protected fields with kubectl", kind=kind.name
            )


def policy_for(kind: AnyKind) -> tuple[Json, Json]:
    """The ValidatingAdmissionPolicy of a kind, and its binding."""
    paths = kind.protected_fields
    name = f"aliquot-trusted-{kind.plural}"
    match: Json = {
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [kind.plural],
    }
    unchanged = " && ".join(f"{_value('object', path)} == {_old_value(path)}" for path in paths)
    rule = {
        "expression": f"!variables.ours || variables.platform || ({unchanged})",
        "message": f"{', '.join(map('.'.join, paths))}: only the platform writes this; leave it unset or unchanged",
        "reason": "Forbidden",
    }
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [match]},
        "variables": [
            {"name": "ours", "expression": _in_project_namespace()},
            {"name": "platform", "expression": _is_platform(kind)},
        ],
        "validations": [rule],
    }
    metadata = {"name": name, "labels": dict(LABELS)}
    return {"metadata": metadata, "spec": spec}, {
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


def _in_project_namespace() -> str:
    keys = ", ".join(f"'{key}'" for key in (PROJECT, *QUEUE_ALIASES))
    return f"has(namespaceObject.metadata.labels) && [{keys}].exists(key, key in namespaceObject.metadata.labels)"


def _is_platform(kind: AnyKind) -> str:
    """CEL: the user may write the object's status, or is one of Kubernetes' own controllers."""
    status = f"authorizer.group('{kind.group}').resource('{kind.plural}').subresource('status')"
    may_update = f"{status}.namespace(namespaceObject.metadata.name).check('update').allowed()"
    return f"'{_CONTROLLERS}' in request.userInfo.groups || {may_update}"


def _value(source: str, path: Sequence[str]) -> str:
    """CEL: a field as text, empty if it or its parent is missing: `object.?spec.?nodeName.orValue('')`."""
    steps = "".join(f"[?'{step}']" if "/" in step else f".?{step}" for step in path)
    return f"{source}{steps}.orValue('')"


def _old_value(path: Sequence[str]) -> str:
    return f"(oldObject == null ? '' : {_value('oldObject', path)})"
