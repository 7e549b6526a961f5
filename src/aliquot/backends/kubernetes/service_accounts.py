"""Accounts with which users of the platform speak to Kubernetes: one ServiceAccount for a user and a namespace.

They live in the platform's own namespace (rbac.py says why) and are called `<namespace>.<user>`, so that Kubernetes'
audit log names the person. Without a binding an account may do nothing; with its removal every token of it ends.
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
# Both are needed: other parts of the platform have accounts and Roles too.
LABELS: Final[Mapping[str, str]] = {_MANAGED_BY: "aliquot", _COMPONENT: "access"}
# How to find them.
SELECTOR: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())
_NAMESPACE, _USER, _USER_UID = (f"aliquot.dev/{word}" for word in ("account-namespace", "account-user", "account-uid"))
_LONGEST: Final = 253  # of a name in Kubernetes


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: str
    namespace: str  # where it may do something
    user: str
    user_uid: str  # of that very user, not of a later one with the name

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, SYSTEM_NAMESPACE, self.uid


def account_of(document: Document) -> Account:
    marks = document.metadata.get("annotations") or {}
    return Account(document.name, document.uid, *(marks.get(key, "") for key in (_NAMESPACE, _USER, _USER_UID)))


def account_name(namespace: str, user: str) -> str:
    name = f"{namespace}.{user}"  # a namespace has no dots
    if len(name) > _LONGEST:
        raise Invalid(f"the names of namespace {namespace!r} and user {user!r} have more than {_LONGEST} characters")
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
            # No pod is to run as it.
            "automountServiceAccountToken": False,
        }
    )


def is_ours(data: Json) -> bool:
    """Whether the loop for access made it: an account, a Role or a RoleBinding."""
    return LABELS.items() <= (data["metadata"].get("labels") or {}).items()
