"""Fields that only the platform writes, kept so by the API server too.

Our server refuses a user who names a pod's node or devices, or signs a workload as somebody else
(`Kind.protected_fields`).
RBAC knows no fields, so whoever may edit pods with kubectl could write them. A ValidatingAdmissionPolicy for each kind
closes that gap inside the API server, from the same table: in projects' namespaces these fields may be set or changed
only by those who may write the object's status, as in our API, and by Kubernetes' own controllers, which copy what
somebody else was allowed to write.
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
    """Makes the policies, or brings them up to date."""
    for kind in KINDS:
        if not kind.protected_fields:
            continue
        policy, binding = policy_for(kind)
        try:
            await driver.apply(ADMISSION_POLICY, policy)
            await driver.apply(ADMISSION_BINDING, binding)
        except NotFound:
            log.warning(
                "this Kubernetes has no admission policies: who may edit pods may edit all of them", kind=kind.name
            )


def policy_for(kind: AnyKind) -> tuple[Json, Json]:
    """The policy and what puts it in force."""
    paths = kind.protected_fields
    name = f"aliquot-trusted-{kind.plural}"
    match: Json = {
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [kind.plural],
    }
    same = " && ".join(f"{_value('object', path)} == {_before(path)}" for path in paths)
    rule = {
        "expression": f"!variables.ours || variables.platform || ({same})",
        "message": f"{', '.join(map('.'.join, paths))}: written by the platform; leave out what you did not find there",
        "reason": "Forbidden",
    }
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [match]},
        "variables": [
            {"name": "ours", "expression": _is_of_a_project()},
            {"name": "platform", "expression": _is_platform(kind)},
        ],
        "validations": [rule],
    }
    metadata = {"name": name, "labels": dict(LABELS)}
    return {"metadata": metadata, "spec": spec}, {
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


def _is_of_a_project() -> str:
    marks = ", ".join(f"'{key}'" for key in (PROJECT, *QUEUE_ALIASES))
    return f"has(namespaceObject.metadata.labels) && [{marks}].exists(mark, mark in namespaceObject.metadata.labels)"


def _is_platform(kind: AnyKind) -> str:
    """Whoever may say how things stand; or who only carries out what another was allowed to ask for."""
    status = f"authorizer.group('{kind.group}').resource('{kind.plural}').subresource('status')"
    may = f"{status}.namespace(namespaceObject.metadata.name).check('update').allowed()"
    return f"'{_CONTROLLERS}' in request.userInfo.groups || {may}"


def _value(source: str, path: Sequence[str]) -> str:
    """A field as text, empty where it or its parent is missing: `object.?spec.?nodeName.orValue('')`."""
    steps = "".join(f"[?'{step}']" if "/" in step else f".?{step}" for step in path)
    return f"{source}{steps}.orValue('')"


def _before(path: Sequence[str]) -> str:
    return f"(oldObject == null ? '' : {_value('oldObject', path)})"
