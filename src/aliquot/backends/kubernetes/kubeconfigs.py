"""Kubeconfigs for users of the platform: an account bound by the user's access rules, and a token that ends.

The account may do in the project's namespace what the user may do there, and nothing anywhere else. Deleting the rule,
the user or the project takes it back, whatever time the token had left.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import replace
from typing import Final

import structlog

from aliquot.api import Json, Project, User
from aliquot.auth.kubeconfigs import IssuedKubeconfig
from aliquot.backends.kubernetes.rbac import apply, read_namespace
from aliquot.backends.kubernetes.rbac_plan import NAME_PREFIX, NamespaceState, conflicting_names, decide, roles_of
from aliquot.backends.kubernetes.service_accounts import account_name, account_of, is_ours, new_account
from aliquot.backends.kubernetes.unstructured_kinds import SERVICE_ACCOUNT
from aliquot.controllers.projects import wanted_namespace
from aliquot.errors import Conflict, Exists, Fault, Invalid, NotFound, Unavailable
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http.transport import Endpoint
from aliquot.store.typed_store import Store

# The loop and other servers bind too; this many times somebody else may be faster.
_TRIES: Final = 8
log = structlog.get_logger()


class Kubeconfigs:
    """Issues them. `address` is where users reach Kubernetes, if that is not where this server does."""

    def __init__(self, driver: KubernetesDriver, *, address: str = "") -> None:
        self._driver = driver
        self._store = Store(driver)
        self._endpoint = replace(driver.endpoint, url=address) if address else driver.endpoint

    async def issue(self, project: str, user: str, seconds: int) -> IssuedKubeconfig:
        namespace = await self._namespace(project)
        known = await self._user(user)
        _check(await read_namespace(self._driver, namespace), project, user)
        await self._account(namespace, known)
        await self._bind(namespace, project, user)
        account = account_name(namespace, user)
        given = await self._driver.request_token(account, SYSTEM_NAMESPACE, seconds)
        if not given.get("token"):
            raise Unavailable("Kubernetes gave no token for the account")
        expires = str(given.get("expirationTimestamp") or "")
        log.info("kubeconfig issued", user=user, project=project, account=account, expires=expires)
        return IssuedKubeconfig(namespace, expires, _kubeconfig(self._endpoint, namespace, user, str(given["token"])))

    async def _namespace(self, name: str) -> str:
        project = await self._store.get(Project, name)
        if project.status.phase != "Ready":
            told = project.status.message or "it was made a moment ago"
            raise Conflict(f"project {name!r} has no namespace yet: {told}")
        return wanted_namespace(project)

    async def _user(self, name: str) -> User:
        try:
            user = await self._store.get(User, name)
        except NotFound:
            fault = Fault("user", f"user {name!r} does not exist")
            raise Invalid.because("kubeconfig", [fault], hint="create the user first") from None
        if user.spec.disabled:
            raise Invalid.because("kubeconfig", [Fault("user", f"user {name!r} is disabled")])
        return user

    async def _account(self, namespace: str, user: User) -> None:
        """The user's account, made or found; one of an earlier user of that name is replaced, and its tokens end."""
        wanted = new_account(namespace, user)
        for _ in range(_TRIES):
            try:
                await self._driver.create(SERVICE_ACCOUNT, wanted)
                return
            except Exists:
                pass
            try:
                there = await self._driver.get(SERVICE_ACCOUNT, wanted.name, SYSTEM_NAMESPACE)
            except NotFound:
                continue  # went this moment
            if not is_ours(there.data):
                raise Conflict(
                    f"service account {wanted.name} in namespace {SYSTEM_NAMESPACE} is not one of ours",
                    hint="have whoever made it delete or rename it",
                )
            if account_of(there) == replace(account_of(wanted), uid=there.uid):
                return
            await self._driver.delete(SERVICE_ACCOUNT, there.name, SYSTEM_NAMESPACE, uid=there.uid)
        raise Conflict(f"service account {wanted.name} keeps changing", hint="try again")

    async def _bind(self, namespace: str, project: str, user: str) -> None:
        """The account's roles are in force when this returns; the loop would do the same a moment later."""
        for _ in range(_TRIES):
            seen = await read_namespace(self._driver, namespace)
            _check(seen, project, user)
            steps = decide(seen)
            if not steps:
                return
            try:
                await apply(self._driver, steps)
            except (Conflict, Exists):
                continue  # somebody was faster
        raise Conflict(f"the rights in namespace {namespace} keep changing", hint="try again")


def _check(seen: NamespaceState, project: str, user: str) -> None:
    """Nobody gets a kubeconfig that can do nothing."""
    roles = roles_of(user, seen)
    if not roles:
        fault = Fault("user", f"user {user!r} has no role in project {project!r} that Kubernetes knows")
        raise Invalid.because("kubeconfig", [fault], hint="make an access rule first")
    if taken := conflicting_names(seen) & {NAME_PREFIX + role for role in roles}:
        raise Conflict(
            f"namespace {seen.namespace} has a Role or RoleBinding {', '.join(sorted(taken))} that is not ours",
            hint="have whoever made it delete or rename it",
        )


def _kubeconfig(endpoint: Endpoint, namespace: str, user: str, token: str) -> Json:
    name = "aliquot"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": _cluster(endpoint)}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": namespace, "context": {"cluster": name, "user": user, "namespace": namespace}}],
        "current-context": namespace,
    }


def _cluster(endpoint: Endpoint) -> Json:
    """What this server itself trusts, told on."""
    cluster: Json = {"server": endpoint.url}
    if endpoint.authority:
        cluster["certificate-authority-data"] = base64.b64encode(endpoint.authority.encode()).decode()
    elif endpoint.trust is not None and endpoint.trust.verify_mode == ssl.CERT_NONE:
        cluster["insecure-skip-tls-verify"] = True
    if endpoint.server_name:
        cluster["tls-server-name"] = endpoint.server_name
    return cluster
