"""Issues kubeconfigs for users of the platform: a ServiceAccount, bound by the user's access rules, and a token.

The account may do in the project's namespace what the user may do there, and nothing elsewhere. Deleting the access
rule, the user or the project revokes it, however long the token is still valid.
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

# The RBAC controller and other servers write the same objects; this many conflicts are retried.
_ATTEMPTS: Final = 8
log = structlog.get_logger()


class Kubeconfigs:
    """`address` is where users reach the API server, if it differs from where this server does."""

    def __init__(self, driver: KubernetesDriver, *, address: str = "") -> None:
        self._driver = driver
        self._store = Store(driver)
        self._endpoint = replace(driver.endpoint, url=address) if address else driver.endpoint

    async def issue(self, project: str, user: str, seconds: int) -> IssuedKubeconfig:
        namespace = await self._namespace(project)
        owner = await self._user(user)
        _check(await read_namespace(self._driver, namespace), project, user)
        await self._ensure_account(namespace, owner)
        await self._bind_roles(namespace, project, user)
        account = account_name(namespace, user)
        token = await self._driver.request_token(account, SYSTEM_NAMESPACE, seconds)
        if not token.get("token"):
            raise Unavailable("the API server issued no token for the account")
        expires = str(token.get("expirationTimestamp") or "")
        log.info("kubeconfig issued", user=user, project=project, account=account, expires=expires)
        return IssuedKubeconfig(namespace, expires, _kubeconfig(self._endpoint, namespace, user, str(token["token"])))

    async def _namespace(self, name: str) -> str:
        project = await self._store.get(Project, name)
        if project.status.phase != "Ready":
            reason = project.status.message or "it was created a moment ago"
            raise Conflict(f"project {name!r} has no namespace yet: {reason}")
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

    async def _ensure_account(self, namespace: str, user: User) -> None:
        """Creates the user's account if it is missing.

        An account of an earlier user with the same name is replaced, which revokes its tokens.
        """
        wanted = new_account(namespace, user)
        for _ in range(_ATTEMPTS):
            try:
                await self._driver.create(SERVICE_ACCOUNT, wanted)
                return
            except Exists:
                pass
            try:
                existing = await self._driver.get(SERVICE_ACCOUNT, wanted.name, SYSTEM_NAMESPACE)
            except NotFound:
                continue  # deleted in the meantime
            if not is_ours(existing.data):
                raise Conflict(
                    f"service account {wanted.name} in namespace {SYSTEM_NAMESPACE} is not managed by Aliquot",
                    hint="delete it, or have its owner rename it",
                )
            if account_of(existing) == replace(account_of(wanted), uid=existing.uid):
                return
            await self._driver.delete(SERVICE_ACCOUNT, existing.name, SYSTEM_NAMESPACE, uid=existing.uid)
        raise Conflict(f"service account {wanted.name} keeps changing", hint="try again")

    async def _bind_roles(self, namespace: str, project: str, user: str) -> None:
        """Returns once the account's roles are bound; the RBAC controller would do it a moment later."""
        for _ in range(_ATTEMPTS):
            state = await read_namespace(self._driver, namespace)
            _check(state, project, user)
            changes = decide(state)
            if not changes:
                return
            try:
                await apply(self._driver, changes)
            except (Conflict, Exists):
                continue  # another writer was faster
        raise Conflict(f"the roles in namespace {namespace} keep changing", hint="try again")


def _check(state: NamespaceState, project: str, user: str) -> None:
    """Refuses to issue a kubeconfig that would permit nothing."""
    roles = roles_of(user, state)
    if not roles:
        fault = Fault("user", f"user {user!r} has no role in project {project!r} that grants access to Kubernetes")
        raise Invalid.because("kubeconfig", [fault], hint="create an access rule first")
    if conflicts := conflicting_names(state) & {NAME_PREFIX + role for role in roles}:
        raise Conflict(
            f"namespace {state.namespace} has a Role or RoleBinding {', '.join(sorted(conflicts))} "
            "that is not managed by Aliquot",
            hint="delete it, or have its owner rename it",
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
    """Users trust the API server as this server does."""
    cluster: Json = {"server": endpoint.url}
    if endpoint.authority:
        cluster["certificate-authority-data"] = base64.b64encode(endpoint.authority.encode()).decode()
    elif endpoint.trust is not None and endpoint.trust.verify_mode == ssl.CERT_NONE:
        cluster["insecure-skip-tls-verify"] = True
    if endpoint.server_name:
        cluster["tls-server-name"] = endpoint.server_name
    return cluster
