"""The store on Kubernetes: our kinds are custom resources, pods, nodes and the like are Kubernetes' own.

What differs from the API in general, and so is done here: where kinds live, how a pod gets its node (a spec cannot be
changed; the `binding` subresource can), the moment in which a new namespace has no service account yet, and how our
custom resources get there.
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
from aliquot.store.http.connections import Socket, Stream
from aliquot.store.http.transport import APPLY_PATCH, Endpoint, Patience, Query

IDLE_SECONDS = 60.0  # the API server keeps an unused connection for 90
# A controller makes each namespace's default service account, usually within a tenth of this.
ACCOUNT_SECONDS = 10.0
ESTABLISH_SECONDS = 30.0
GLANCE_SECONDS = 0.1
FIELD_MANAGER = "aliquot"  # as which the cluster remembers what we applied

DEFINITION: Kind[dict[str, Any]] = Kind(
    name="CustomResourceDefinition", type=dict, plural="customresourcedefinitions", group="apiextensions.k8s.io"
)


def path_of(kind: AnyKind) -> str:
    return f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"


class KubernetesDriver(RestDriver):
    def __init__(self, endpoint: Endpoint, *, patience: Patience | None = None, page: int = PAGE) -> None:
        super().__init__(endpoint, path_of, patience=patience or Patience(idle=IDLE_SECONDS), page=page)
        self.endpoint = endpoint

    async def create(self, kind: AnyKind, document: Document) -> Document:
        until = time.monotonic() + ACCOUNT_SECONDS
        while True:
            try:
                return await super().create(kind, document)
            except Denied as exc:
                early = kind.name == "Pod" and "looking up service account" in exc.message
                if not early or time.monotonic() > until:
                    raise
            await asyncio.sleep(GLANCE_SECONDS)

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
        """A token of a service account, as `{"token", "expirationTimestamp"}`. The server may give less time."""
        path = f"{self._one(_ACCOUNT, account, namespace)}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        status: Json = (await self._transport.write("POST", path, asked)).get("status") or {}
        return status

    async def look(self, pod: str, namespace: str, part: str, query: Query) -> Stream:
        """A part of a pod that is read as a stream, such as its `log`."""
        return await self._transport.stream(f"{self._one(_POD, pod, namespace)}/{part}", query)

    async def enter(
        self, pod: str, namespace: str, part: str, query: Sequence[tuple[str, str]], protocol: str
    ) -> Socket:
        """A part of a pod that is talked to, such as `exec`."""
        return await self._transport.socket(f"{self._one(_POD, pod, namespace)}/{part}", query, protocol)

    async def _follow(self, path: str, query: Query, version: str) -> AsyncGenerator[Change, None]:
        if not version.isdigit():
            # The API server would answer 500, or for an empty one begin somewhere.
            raise Invalid(f"{version!r} is not a version of this store", hint="use the one a list gave")
        if int(version) == 0:
            # To the API server this means "from any time": what was deleted in between would be missed.
            raise Expired(f"version {version} is too old to watch from", hint="list again and watch from there")
        async with aclosing(super()._follow(path, query, version)) as changes:
            async for change in changes:
                yield change

    async def _patch_if_binding(self, kind: AnyKind, document: Document) -> Json | None:
        """The patch a pod's update amounts to, if all it does is give the pod its node and annotations."""
        there = await self.get(kind, document.name, document.namespace)
        before, after = there.data["spec"], document.data["spec"]
        if there.version != document.version:
            raise Conflict(f"pod {document.name!r} has changed since version {document.version}")
        if before.get("nodeName") or {**before, "nodeName": after["nodeName"]} != after:
            return None
        marks = document.metadata.get("annotations") or {}
        return {"spec": {"nodeName": after["nodeName"]}, "metadata": {"annotations": marks}}

    async def _bind(self, name: str, namespace: str, patch: Json, version: str) -> Document:
        """One write that gives a pod its node and annotations; `Conflict` when it has a node or has changed."""
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
        # The answer to a binding is only "done"; the caller wants to know the pod's new version.
        return await self.get(_POD, name, namespace)

    # --- what only Kubernetes can

    async def bind(
        self, name: str, namespace: str, node: str, annotations: Json, *, uid: str = "", version: str = ""
    ) -> None:
        """The same in one request, for those who do not need the pod's new version."""
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
        await self._transport.write("POST", f"{self._one(_POD, name, namespace)}/binding", binding)

    async def evict(
        self, name: str, namespace: str, *, uid: str = "", grace_seconds: int | None = None, dry_run: bool = False
    ) -> None:
        """Delete a pod if its disruption budget lets us; `Unavailable` when not now. Dry: only ask."""
        options: Json = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if dry_run:
            options["dryRun"] = ["All"]
        place = {"name": name, "namespace": namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": place, "deleteOptions": options}
        await self._transport.write("POST", f"{self._one(_POD, name, namespace)}/eviction", eviction, patient=False)

    async def apply(self, kind: AnyKind, wanted: Json) -> Document:
        """Make an object say what is wanted, whether it is there or not; what others wrote beside that stays."""
        metadata = wanted["metadata"]
        path = self._one(kind, metadata["name"], metadata.get("namespace") or "")
        said = {**wanted, "apiVersion": kind.api_version, "kind": kind.name}
        query = f"?fieldManager={FIELD_MANAGER}&force=true"
        return Document(await self._transport.write("PATCH", path + query, said, APPLY_PATCH))

    async def log(self, name: str, namespace: str, *, most: int = 65536) -> list[str]:
        """The first lines that a pod has written, at most so many bytes."""
        path = f"{self._one(_POD, name, namespace)}/log"
        async with aclosing(self._transport.lines(path, {"limitBytes": str(most)})) as lines:
            return [line.decode(errors="replace") async for line in lines]


_POD: Kind[dict[str, Any]] = Kind(
    name="Pod", type=dict, plural="pods", group="", namespaced=True, graceful_deletion=True
)

_ACCOUNT: Kind[dict[str, Any]] = Kind(
    name="ServiceAccount", type=dict, plural="serviceaccounts", group="", namespaced=True
)


async def install(driver: KubernetesDriver, definitions: Iterable[Json] | None = None) -> None:
    """Makes our kinds known to the cluster, and returns when it serves them. What a newer Aliquot installed stays."""
    if definitions is None:
        from aliquot.api.crds import crds

        definitions = crds()
    wanted = list(definitions)
    for definition in wanted:
        await _apply(driver, definition)
    for definition in wanted:  # they become ready side by side, so the first wait is nearly the only one
        await _served(driver, definition)


async def _apply(driver: KubernetesDriver, definition: Json) -> None:
    metadata = definition["metadata"]
    stamp = {**metadata.get("annotations", {}), INSTALLED_VERSION: aliquot.__version__}
    while True:
        try:
            try:
                there = await driver.get(DEFINITION, metadata["name"])
            except NotFound:
                await driver.create(
                    DEFINITION, Document({**definition, "metadata": {**metadata, "annotations": stamp}})
                )
                return
            if not _is_newer(there.data, definition):
                marks = {**there.metadata, "annotations": {**there.metadata.get("annotations", {}), **stamp}}
                await driver.update(DEFINITION, Document({**there.data, "metadata": marks, "spec": definition["spec"]}))
            return
        except (Exists, Conflict):
            continue  # another replica installs too: look again


def _is_newer(there: Json, ours: Json) -> bool:
    """Whether a later Aliquot wrote it, or it has versions that we do not know: objects may be stored in them."""
    names = [{version["name"] for version in definition["spec"]["versions"]} for definition in (there, ours)]
    installed = (there["metadata"].get("annotations") or {}).get(INSTALLED_VERSION, "0")
    return bool(names[0] - names[1]) or _release(installed) > _release(aliquot.__version__)


def _release(version: str) -> tuple[int, ...]:
    """Numbers to compare; what follows the first part that is not one does not count."""
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
        there = await driver.get(DEFINITION, name)
        conditions = (there.data.get("status") or {}).get("conditions") or ()  # null in the first moment
        states = {state["type"]: state for state in conditions}
        refused = states.get("NamesAccepted", {})
        if refused.get("status") == "False":
            raise Invalid(f"the cluster does not take {name}: {refused.get('message', 'its names are taken')}")
        if states.get("Established", {}).get("status") == "True" and await _answers(driver, path):
            return
        if time.monotonic() > until:
            raise Unavailable(f"the cluster does not serve {name} after {ESTABLISH_SECONDS:.0f} s")
        await asyncio.sleep(GLANCE_SECONDS)


async def _answers(driver: KubernetesDriver, path: str) -> bool:
    try:
        await driver._transport.read(path, {"limit": "1"})
    except NotFound:
        return False  # established, but not yet in the part that serves
    return True
