"""REST routes of every kind: list, watch, create, read, replace, patch and delete, and the same for its status.

There is one handler per verb over the table of kinds; rules of single kinds are in the table itself or in
`aliquot.admission.hooks`. Paths, parameters and responses are those of the Kubernetes API, under
`/apis/aliquot.dev/v1` for all kinds, so that any client of that shape works. Every handler authenticates the caller,
authorizes the request, validates the object, and then writes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from aliquot.admission.hooks import Hooks
from aliquot.admission.protected_fields import protected_values, record_submitter
from aliquot.admission.references import check_not_referenced, check_references
from aliquot.admission.validation import validate_document
from aliquot.api import KINDS, Json
from aliquot.auth.tokens import Secret
from aliquot.errors import Conflict, Denied, Exists, Fault, Invalid, NotFound, PlatformError
from aliquot.server.access_control import AccessControl, Caller, owns
from aliquot.server.hidden_fields import restore_hidden_fields, without_hidden_fields
from aliquot.server.http_json import json_response, read_json, status_of
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver

PREFIX = "/apis/aliquot.dev/v1"
# A patch without a version applies to the object just read; this often another writer may be faster.
_PATCH_TRIES = 8
# A longer time is a mistake, and a much longer one overflows a date.
_MAX_SECONDS = 366 * 24 * 3600
Handler = Callable[[Request, AnyKind], Coroutine[None, None, Response]]


class ObjectRoutes:
    """The routes and handlers, over one store."""

    def __init__(self, driver: StoreDriver, access: AccessControl, hooks: Hooks, stopping: asyncio.Event) -> None:
        self._driver = driver
        self._access = access
        self._hooks = hooks
        self._stopping = stopping

    def routes(self) -> list[Route]:
        routes = []
        for kind in KINDS:
            collections = [f"{PREFIX}/{kind.plural}"]
            if kind.namespaced:
                collections.append(f"{PREFIX}/namespaces/{{namespace}}/{kind.plural}")
            item = f"{collections[-1]}/{{name}}"
            routes += [self._route(path, kind, GET=self.list) for path in collections[:-1]]
            routes += [
                self._route(collections[-1], kind, GET=self.list, POST=self.create),
                self._route(item, kind, GET=self.get, PUT=self.replace, PATCH=self.patch, DELETE=self.delete),
            ]
            if kind.has_status:
                routes.append(self._route(f"{item}/status", kind, GET=self.get, PUT=self.replace, PATCH=self.patch))
        return routes

    def _route(self, path: str, kind: AnyKind, **handlers: Handler) -> Route:
        """One route for all verbs of a path, so that a 405 response lists the verbs that exist."""

        async def handle(request: Request) -> Response:
            _check_dry_run(request, kind)
            return await handlers["GET" if request.method == "HEAD" else request.method](request, kind)

        return Route(path, handle, methods=list(handlers))

    # --- reads

    async def list(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        namespace = request.path_params.get("namespace")
        selectors = _selectors(request)
        if namespace is not None:
            self._access.require(caller, "view", kind, namespace)
        elif not caller.roles and not kind.owner_field:
            raise Denied(f"{caller.subject!r} has no access rule", hint="ask an administrator for one")
        if request.method == "GET" and request.query_params.get("watch", "").lower() in ("true", "1"):
            return self._watch(request, caller, kind, namespace, selectors)
        listing = await self._driver.list(kind, namespace, **selectors)
        sees_all = namespace is not None or self._access.sees_all(caller, kind)
        items = [
            without_hidden_fields(kind, document).raw
            for document in listing.items
            if sees_all or self._access.sees(caller, kind, document)
        ]
        head = {
            "apiVersion": kind.api_version,
            "kind": f"{kind.name}List",
            "metadata": {"resourceVersion": listing.version},
        }
        # Documents are joined as stored: nothing is parsed only to be written again.
        return json_response(json.dumps(head).encode()[:-1] + b', "items": [' + b",".join(items) + b"]}")

    async def get(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _path_names(request)
        if not await self._is_owner(caller, kind, name):
            self._access.require(caller, "view", kind, namespace, name)
        return self._answer(kind, await self._driver.get(kind, name, namespace))

    # --- writes

    async def create(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        namespace = request.path_params.get("namespace", "")
        data = await read_json(request)
        hooks = self._hooks.of(kind)
        if not kind.owner_field:
            self._access.require_create(caller, kind, namespace, _name_in(data), data)
        prepared = await hooks.prepare_create(data, namespace, caller.subject)
        document = validate_document(kind, prepared.data, namespace=namespace, creating=True)
        if kind.owner_field and not owns(caller, kind, document):
            self._access.require(caller, "create", kind, namespace, document.name)
        self._check_protected_fields(caller, kind, document, None)
        hooks.validate(document)
        document = record_submitter(kind, document, caller.subject)
        await check_references(self._driver, kind, document.data)
        if "dryRun" in request.query_params:
            await self._check_name_is_free(kind, document)
            return self._answer(kind, document, 201)
        return self._answer(kind, await self._driver.create(kind, document), 201, prepared.response_fields)

    async def _check_name_is_free(self, kind: AnyKind, document: Document) -> None:
        with suppress(NotFound):
            await self._driver.get(kind, document.name, document.namespace)
            raise Exists(f"{kind.singular} {document.name!r} already exists")

    async def replace(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _path_names(request)
        self._access.require(caller, _action(request), kind, namespace, name)
        data = await restore_hidden_fields(self._driver, kind, await read_json(request), name)
        new = validate_document(kind, data, name=name, namespace=namespace, creating=False)
        if _is_status_request(request):
            return self._answer(kind, await self._driver.update_status(kind, new))
        if self._compares_updates(kind):
            old = await self._driver.get(kind, name, namespace)
            self._check_update(caller, kind, new, old)
            self._hooks.of(kind).validate(new, old)
        await check_references(self._driver, kind, new.data)
        return self._answer(kind, await self._driver.update(kind, new))

    async def patch(self, request: Request, kind: AnyKind) -> Response:
        """A JSON merge patch (RFC 7386). The whole result is validated, so a patch cannot make an object that a create
        could not."""
        caller = await self._caller(request)
        name, namespace = _path_names(request)
        self._access.require(caller, _action(request), kind, namespace, name)
        patch = await read_json(request)
        metadata = patch.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        status = _is_status_request(request)
        for attempt in range(_PATCH_TRIES):
            try:
                return self._answer(kind, await self._patch_once(caller, kind, name, namespace, patch, status))
            except Conflict:
                if version or attempt == _PATCH_TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _patch_once(
        self, caller: Caller, kind: AnyKind, name: str, namespace: str, patch: Json, status: bool
    ) -> Document:
        old = await self._driver.get(kind, name, namespace)
        merged = object_rules.merged(old.data, patch)
        new = validate_document(kind, merged, name=name, namespace=namespace, creating=False)
        self._check_update(caller, kind, new, old)
        if not status:
            self._hooks.of(kind).validate(new, old)
        await check_references(self._driver, kind, new.data)
        # Not the patch as it was sent: the validated object is in canonical form, so the difference is too.
        difference = object_rules.difference(old.data, new.data)
        version = str((merged.get("metadata") or {}).get("resourceVersion") or old.version)
        (difference.get("metadata") or {}).pop("resourceVersion", None)
        return await self._driver.patch(kind, name, namespace, difference, version=version, status=status)

    def _compares_updates(self, kind: AnyKind) -> bool:
        """Whether checks of an update need the stored object."""
        moves_between_departments = kind.authorization_scope == "project"
        return moves_between_departments or bool(kind.protected_fields) or self._hooks.of(kind).validates_updates

    def _check_update(self, caller: Caller, kind: AnyKind, new: Document, old: Document) -> None:
        self._access.require_move(caller, kind, new, old)
        self._check_protected_fields(caller, kind, new, old)

    def _check_protected_fields(self, caller: Caller, kind: AnyKind, new: Document, old: Document | None) -> None:
        if protected_values(kind, new) != protected_values(kind, old):
            self._access.require(caller, "report", kind, new.namespace, new.name)

    async def delete(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _path_names(request)
        if not await self._is_owner(caller, kind, name):
            self._access.require(caller, "delete", kind, namespace, name)
        options = await read_json(request, empty={})
        preconditions = _preconditions(options)
        await check_not_referenced(self._driver, kind, name)
        await self._hooks.of(kind).validate_delete(name)
        deleted = await self._driver.delete(
            kind,
            name,
            namespace,
            version=str(preconditions.get("resourceVersion") or ""),
            uid=str(preconditions.get("uid") or ""),
            grace_seconds=_grace(request, options),
        )
        if kind.is_credential:
            self._access.revoke(name)
        with suppress(NotFound):  # it may be gone by now
            if not deleted:
                return self._answer(kind, await self._driver.get(kind, name, namespace), 202)
        return json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200})

    async def _is_owner(self, caller: Caller, kind: AnyKind, name: str) -> bool:
        """Whether the caller owns the object and may not delete it by a role, so that ownership decides."""
        if not kind.owner_field or self._access.may(caller, "delete", kind, "", name):
            return False
        try:
            return owns(caller, kind, await self._driver.get(kind, name))
        except NotFound:
            return False  # the caller must not learn whether another user has an object of that name

    # --- watch

    def _watch(
        self, request: Request, caller: Caller, kind: AnyKind, namespace: str | None, selectors: dict[str, str]
    ) -> Response:
        version = request.query_params.get("resourceVersion", "")
        if not version:
            raise Invalid.because(
                "watch", [Fault("resourceVersion", "is required")], hint="list first, watch from there"
            )
        changes = self._driver.watch(kind, namespace, version=version, **selectors)
        seconds = _seconds(request, "timeoutSeconds")
        lines = self._watch_lines(caller, kind, namespace, changes, seconds)
        return StreamingResponse(lines, media_type="application/json")

    async def _watch_lines(
        self, caller: Caller, kind: AnyKind, namespace: str | None, changes: AsyncIterator[Change], seconds: int | None
    ) -> AsyncIterator[bytes]:
        """A JSON line for each change, until the client disconnects, the time is up or the server stops."""
        sees_all = namespace is not None or self._access.sees_all(caller, kind)
        generation = self._access.generation
        deadline = None if seconds is None else time.monotonic() + seconds
        source = aiter(changes)
        stop = asyncio.ensure_future(self._stopping.wait())
        step: asyncio.Future[Change] | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(anext(source))
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait((step, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if step not in done:
                    return
                change, step = step.result(), None
                if generation != self._access.generation:
                    # Permissions changed. A watch may last long and must not outlive them.
                    generation = self._access.generation
                    caller = await self._access.refresh(caller)
                    sees_all = namespace is not None or self._access.sees_all(caller, kind)
                    if namespace is not None:
                        self._access.require(caller, "view", kind, namespace)
                if change.document is None or sees_all or self._access.sees(caller, kind, change.document):
                    yield _watch_line(kind, change)
        except StopAsyncIteration:
            return
        except PlatformError as exc:
            yield _watch_event(b"ERROR", json.dumps(status_of(exc)).encode())
        finally:
            stop.cancel()
            if step is not None:
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
            await source.aclose()  # type: ignore[attr-defined]  # every driver's watch is a generator

    # --- shared

    async def _caller(self, request: Request) -> Caller:
        return await self._access.authenticate(request.headers.get("authorization"))

    def _answer(
        self, kind: AnyKind, document: Document, status: int = 200, extra: Mapping[str, Secret] | None = None
    ) -> Response:
        shown = without_hidden_fields(kind, document)
        if extra:
            return json_response({**shown.data, **{name: secret.reveal() for name, secret in extra.items()}}, status)
        return json_response(shown.raw, status)


def _watch_line(kind: AnyKind, change: Change) -> bytes:
    if change.document is None:
        head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"resourceVersion": change.version}}
        return _watch_event(b"BOOKMARK", json.dumps(head).encode())
    return _watch_event(change.type.encode(), without_hidden_fields(kind, change.document).raw)


def _watch_event(type_: bytes, raw: bytes) -> bytes:
    return b'{"type":"' + type_ + b'","object":' + raw + b"}\n"


def _path_names(request: Request) -> tuple[str, str]:
    """Name and namespace in the path."""
    return request.path_params["name"], request.path_params.get("namespace", "")


def _name_in(data: Json) -> str:
    metadata = data.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _selectors(request: Request) -> dict[str, str]:
    query = request.query_params
    return {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}


def _action(request: Request) -> str:
    return "report" if _is_status_request(request) else "edit"


def _check_dry_run(request: Request, kind: AnyKind) -> None:
    """`dryRun=All`, as in Kubernetes. Where it is not supported it is refused: it must never write."""
    value = request.query_params.get("dryRun")
    if value is None or request.method in ("GET", "HEAD"):
        return
    if value != "All":
        raise Invalid.because("request", [Fault("dryRun", f"must be All, not {value!r}")])
    if request.method != "POST" or not kind.supports_dry_run:
        raise Invalid.because("request", [Fault("dryRun", "is possible only where an object is created")])


def _is_status_request(request: Request) -> bool:
    return request.url.path.endswith("/status")


def _grace(request: Request, options: Json) -> int | None:
    grace = options.get("gracePeriodSeconds")
    if grace is None:
        return _seconds(request, "gracePeriodSeconds")
    if not isinstance(grace, int) or isinstance(grace, bool) or not 0 <= grace <= _MAX_SECONDS:
        raise Invalid.because(
            "delete", [Fault("gracePeriodSeconds", f"must be a whole number of seconds, not {grace!r}")]
        )
    return grace


def _preconditions(options: Json) -> Json:
    preconditions = options.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise Invalid.because("delete", [Fault("preconditions", "must be an object")])
    return preconditions


def _seconds(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > _MAX_SECONDS:
        raise Invalid.because("request", [Fault(name, f"must be a whole number of seconds, not {text!r}")])
    return int(text)
