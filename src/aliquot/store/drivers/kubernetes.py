"""The store on Kubernetes: our kinds are custom resources; pods, nodes and the like are core objects.

Adds to the REST driver: the paths of the API groups, binding through the `binding` subresource (a pod's spec cannot be
changed), a retry for pods in a new namespace that has no service account yet, evictions, server-side apply, and the
installation of our custom resource definitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import aliquot
from aliquot.api import Json, Kind
from aliquot.errors import Conflict, Denied, Exists, Expired, Invalid, NotFound, Unavailable
from aliquot.labels import INSTALLED_VERSION
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, Change, Document
from aliquot.store.drivers.rest import PAGE, RestDriver
from aliquot.store.http.client import Response, Socket
from aliquot.store.http.transport import APPLY_PATCH, Endpoint, Query, Timeouts

IDLE_SECONDS = 60.0  # the API server closes an unused connection after 90
# A controller creates each namespace's default service account, usually within a tenth of this.
ACCOUNT_SECONDS = 10.0
ESTABLISH_SECONDS = 30.0
POLL_SECONDS = 0.1
FIELD_MANAGER = "aliquot"  # the owner of the fields that we apply

DEFINITION: Kind[dict[str, Any]] = Kind(
    name="CustomResourceDefinition", type=dict, plural="customresourcedefinitions", group="apiextensions.k8s.io"
)


def path_of(kind: AnyKind) -> str:
    return f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"


class KubernetesDriver(RestDriver):
    def __init__(self, endpoint: Endpoint, *, timeouts: Timeouts | None = None, page: int = PAGE) -> None:
        super().__init__(endpoint, path_of, timeouts=timeouts or Timeouts(idle=IDLE_SECONDS), page=page)
        self.endpoint = endpoint

    async def create(self, kind: AnyKind, document: Document) -> Document:
        until = time.monotonic() + ACCOUNT_SECONDS
        while True:
            try:
                return await super().create(kind, document)
            except Denied as exc:
                no_account_yet = kind.name == "Pod" and "looking up service account" in exc.message
                if not no_account_yet or time.monotonic() > until:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def update(self, kind: AnyKind, document: Document) -> Document:
        try:
            return await super().update(kind, document)
        except Invalid:
            binds = kind.name == "Pod" and (document.data.get("spec") or {}).get("nodeName") and document.version
            patch = await self._patch_if_binding(kind, document) if binds else None
            if patch is None:
                raise
            return await self._bind(document.name, document.namespace, patch, document.version)

    async def patch(
        self, kind: AnyKind, name: str, namespace: str, patch: Json, *, version: str = "", status: bool = False
    ) -> Document:
        if kind.name == "Pod" and not status and (patch.get("spec") or {}).get("nodeName"):
            return await self._bind(name, namespace, patch, version)
        return await super().patch(kind, name, namespace, patch, version=version, status=status)

    async def request_token(self, account: str, namespace: str, seconds: int) -> Json:
        """A token of a service account: `{"token", "expirationTimestamp"}`. The server may shorten its lifetime."""
        path = f"{self._object_path(_ACCOUNT, account, namespace)}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        status: Json = (await self._transport.write("POST", path, request)).get("status") or {}
        return status

    async def open_stream(self, pod: str, namespace: str, subresource: str, query: Query) -> Response:
        """A subresource of a pod that is read as a stream, such as `log`."""
        return await self._transport.stream(f"{self._object_path(_POD, pod, namespace)}/{subresource}", query)

    async def open_socket(
        self, pod: str, namespace: str, subresource: str, query: Sequence[tuple[str, str]], protocol: str
    ) -> Socket:
        """A subresource of a pod with messages in both directions, such as `exec`."""
        return await self._transport.socket(f"{self._object_path(_POD, pod, namespace)}/{subresource}", query, protocol)

    async def _follow(self, path: str, query: Query, version: str) -> AsyncGenerator[Change, None]:
        if not version.isdigit():
            # The API server would answer 500, and for an empty version start anywhere.
            raise Invalid(f"{version!r} is not a version of this store", hint="use the one a list gave")
        if int(version) == 0:
            # To the API server this means "from any version": deletions would be missed.
            raise Expired(f"version {version} is too old to watch from", hint="list again and watch from there")
        async with aclosing(super()._follow(path, query, version)) as changes:
            async for change in changes:
                yield change

    async def _patch_if_binding(self, kind: AnyKind, document: Document) -> Json | None:
        """The equivalent patch, if the update only sets the pod's node and annotations."""
        current = await self.get(kind, document.name, document.namespace)
        before, after = current.data["spec"], document.data["spec"]
        if current.version != document.version:
            raise Conflict(f"pod {document.name!r} has changed since version {document.version}")
        if before.get("nodeName") or {**before, "nodeName": after["nodeName"]} != after:
            return None
        annotations = document.metadata.get("annotations") or {}
        return {"spec": {"nodeName": after["nodeName"]}, "metadata": {"annotations": annotations}}

    async def _bind(self, name: str, namespace: str, patch: Json, version: str) -> Document:
        """Sets a pod's node and annotations in one write. `Conflict` when the pod is bound or has changed."""
        metadata = patch.get("metadata") or {}
        object_rules.check_binding(patch)
        await self.bind(
            name,
            namespace,
            patch["spec"]["nodeName"],
            metadata.get("annotations") or {},
            uid=metadata.get("uid") or "",
            version=version or metadata.get("resourceVersion") or "",
        )
        # The answer to a binding does not contain the pod's new version.
        return await self.get(_POD, name, namespace)

    # --- beyond the StoreDriver interface

    async def bind(
        self, name: str, namespace: str, node: str, annotations: Json, *, uid: str = "", version: str = ""
    ) -> None:
        """Binds a pod in one request, without reading its new version."""
        conditions = {"uid": uid, "resourceVersion": version}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "annotations": annotations,
                **{key: value for key, value in conditions.items() if value},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._transport.write("POST", f"{self._object_path(_POD, name, namespace)}/binding", binding)

    async def evict(
        self, name: str, namespace: str, *, uid: str = "", grace_seconds: int | None = None, dry_run: bool = False
    ) -> None:
        """Evicts a pod. `Unavailable` when its disruption budget does not allow it now. `dry_run` only checks."""
        options: Json = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if dry_run:
            options["dryRun"] = ["All"]
        meta = {"name": name, "namespace": namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        await self._transport.write(
            "POST", f"{self._object_path(_POD, name, namespace)}/eviction", eviction, retry=False
        )

    async def apply(self, kind: AnyKind, wanted: Json) -> Document:
        """Server-side apply: creates the object or sets the given fields. Fields of other owners stay."""
        metadata = wanted["metadata"]
        path = self._object_path(kind, metadata["name"], metadata.get("namespace") or "")
        applied = {**wanted, "apiVersion": kind.api_version, "kind": kind.name}
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        return Document(await self._transport.write("PATCH", path + query, applied, APPLY_PATCH))

    async def log(self, name: str, namespace: str, *, limit_bytes: int = 65536) -> list[str]:
        """The first lines of a pod's log."""
        path = f"{self._object_path(_POD, name, namespace)}/log"
        async with aclosing(self._transport.lines(path, {"limitBytes": str(limit_bytes)})) as lines:
            return [line.decode(errors="replace") async for line in lines]


_POD: Kind[dict[str, Any]] = Kind(
    name="Pod", type=dict, plural="pods", group="", namespaced=True, graceful_deletion=True
)

_ACCOUNT: Kind[dict[str, Any]] = Kind(
    name="ServiceAccount", type=dict, plural="serviceaccounts", group="", namespaced=True
)


async def install(driver: KubernetesDriver, definitions: Iterable[Json] | None = None) -> None:
    """Installs the custom resource definitions and waits until they are served. Those of a newer version stay."""
    if definitions is None:
        from aliquot.api.crds import crds  # builds every schema, so it is imported only here

        definitions = crds()
    wanted = list(definitions)
    for definition in wanted:
        await _apply(driver, definition)
    for definition in wanted:  # they become ready concurrently
        await _served(driver, definition)


async def _apply(driver: KubernetesDriver, definition: Json) -> None:
    metadata = definition["metadata"]
    stamp = {**metadata.get("annotations", {}), INSTALLED_VERSION: aliquot.__version__}
    while True:
        try:
            try:
                current = await driver.get(DEFINITION, metadata["name"])
            except NotFound:
                await driver.create(
                    DEFINITION, Document({**definition, "metadata": {**metadata, "annotations": stamp}})
                )
                return
            if not _is_newer(current.data, definition):
                meta = {**current.metadata, "annotations": {**current.metadata.get("annotations", {}), **stamp}}
                await driver.update(
                    DEFINITION, Document({**current.data, "metadata": meta, "spec": definition["spec"]})
                )
            return
        except (Exists, Conflict):
            continue  # another replica installs too: read again


def _is_newer(current: Json, ours: Json) -> bool:
    """Whether a newer Aliquot installed it, or it has versions unknown to us, in which objects may be stored."""
    names = [{version["name"] for version in definition["spec"]["versions"]} for definition in (current, ours)]
    installed = (current["metadata"].get("annotations") or {}).get(INSTALLED_VERSION, "0")
    return bool(names[0] - names[1]) or _release(installed) > _release(aliquot.__version__)


def _release(version: str) -> tuple[int, ...]:
    """The leading numeric parts of a version, for comparison."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


async def _served(driver: KubernetesDriver, definition: Json) -> None:
    name, spec = definition["metadata"]["name"], definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    until = time.monotonic() + ESTABLISH_SECONDS
    while True:
        current = await driver.get(DEFINITION, name)
        conditions = (current.data.get("status") or {}).get("conditions") or ()  # null at first
        states = {state["type"]: state for state in conditions}
        refused = states.get("NamesAccepted", {})
        if refused.get("status") == "False":
            raise Invalid(f"the cluster rejects {name}: {refused.get('message', 'its names are taken')}")
        if states.get("Established", {}).get("status") == "True" and await _answers(driver, path):
            return
        if time.monotonic() > until:
            raise Unavailable(f"the cluster does not serve {name} after {ESTABLISH_SECONDS:.0f} s")
        await asyncio.sleep(POLL_SECONDS)


async def _answers(driver: KubernetesDriver, path: str) -> bool:
    try:
        await driver._transport.read(path, {"limit": "1"})
    except NotFound:
        return False  # established, but not served yet
    return True
