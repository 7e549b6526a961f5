"""The ServiceAccounts with which users of the platform reach Kubernetes: one per user and namespace.

They are in the platform's own namespace (rbac.py says why) and named `<namespace>.<user>`, so that the audit log of
Kubernetes names the person. An account without a binding may do nothing. Deleting it revokes its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aliquot.api import Json, User
from aliquot.errors import Invalid
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.driver import Document

_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_COMPONENT: Final = "app.kubernetes.io/component"
# Both labels are needed: other components of the platform have accounts and Roles too.
LABELS: Final[Mapping[str, str]] = {_MANAGED_BY: "aliquot", _COMPONENT: "access"}
# The label selector for them.
SELECTOR: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())
_NAMESPACE, _USER, _USER_UID = (f"aliquot.dev/{name}" for name in ("account-namespace", "account-user", "account-uid"))
_MAX_NAME_LENGTH: Final = 253


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: str
    namespace: str  # the one that it grants access to
    user: str
    user_uid: str  # tells this user from a later one of the same name


def account_of(document: Document) -> Account:
    annotations = document.metadata.get("annotations") or {}
    return Account(document.name, document.uid, *(annotations.get(key, "") for key in (_NAMESPACE, _USER, _USER_UID)))


def account_name(namespace: str, user: str) -> str:
    name = f"{namespace}.{user}"  # a namespace has no dots
    if len(name) > _MAX_NAME_LENGTH:
        raise Invalid(
            f"the names of namespace {namespace!r} and user {user!r} have more than {_MAX_NAME_LENGTH} characters"
        )
    return name


def new_account(namespace: str, user: User) -> Document:
    name = user.metadata.name
    return Document(
        {
            "metadata": {
                "name": account_name(namespace, name),
                "namespace": SYSTEM_NAMESPACE,
                "labels": LABELS,
                "annotations": {_NAMESPACE: namespace, _USER: name, _USER_UID: user.metadata.uid},
            },
            # No pod runs as this account.
            "automountServiceAccountToken": False,
        }
    )


def is_ours(data: Json) -> bool:
    """Whether the RBAC controller manages this account, Role or RoleBinding."""
    return LABELS.items() <= (data["metadata"].get("labels") or {}).items()
