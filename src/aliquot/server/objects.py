"""Every kind's routes: list, watch, create, read, replace, patch, delete, and the same for its status.

One handler per verb over the table of kinds. Addresses, parameters and answers are those of the Kubernetes API, under
`/apis/aliquot.dev/v1` for all kinds, so any client of that shape can talk to us. Each handler has the same movements:
who calls, may they, is it valid, do it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from aliquot.admission import references
from aliquot.admission.policies import Presets
from aliquot.api import KINDS
from aliquot.api.base import Json
from aliquot.errors import Conflict, Denied, Exists, Fault, Invalid, NotFound, PlatformError
from aliquot.server import secrets
from aliquot.server.access import Access, Caller, department_of, owns
from aliquot.server.responses import json_response, read_json, status_of
from aliquot.store import object_rules
from aliquot.store.driver import AnyKind, Change, Document, StoreDriver

PREFIX = "/apis/aliquot.dev/v1"
# A patch without a version is decided from what was read a moment ago; this many times somebody else may be faster.
_PATCH_TRIES = 8
_LONGEST_SECONDS = 366 * 24 * 3600  # more is a mistake, and far more is no time that can be written down
Handler = Callable[[Request, AnyKind], Coroutine[None, None, Response]]


class Objects:
    """The handlers, over one body."""

    def __init__(self, driver: StoreDriver, access: Access, presets: Presets, stopping: asyncio.Event) -> None:
        self._driver = driver
        self._access = access
        self._presets = presets
        self._stopping = stopping

    def routes(self) -> list[Route]:
        routes = []
        for kind in KINDS:
            many = [f"{PREFIX}/{kind.plural}"]
            if kind.namespaced:
                many.append(f"{PREFIX}/namespaces/{{namespace}}/{kind.plural}")
            one = f"{many[-1]}/{{name}}"
            routes += [self._route(path, kind, GET=self.list) for path in many[:-1]]
            routes += [
                self._route(many[-1], kind, GET=self.list, POST=self.create),
                self._route(one, kind, GET=self.get, PUT=self.replace, PATCH=self.patch, DELETE=self.delete),
            ]
            if kind.has_status:
                routes.append(self._route(f"{one}/status", kind, GET=self.get, PUT=self.replace, PATCH=self.patch))
        return routes

    def _route(self, path: str, kind: AnyKind, **handlers: Handler) -> Route:
        """One route for all verbs of an address, so that a refused verb is told which ones there are."""

        async def handle(request: Request) -> Response:
            _check_rehearsal(request, kind)
            return await handlers["GET" if request.method == "HEAD" else request.method](request, kind)

        return Route(path, handle, methods=list(handlers))

    # --- reads

    async def list(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        namespace = request.path_params.get("namespace")
        selection = _selection(request)
        if namespace is not None:
            self._access.require(caller, "view", kind, namespace)
        elif not caller.grants and kind.name != "Token":
            raise Denied(f"{caller.subject!r} has no access rule", hint="ask an administrator for one")
        if request.method == "GET" and request.query_params.get("watch", "").lower() in ("true", "1"):
            return self._watch(request, caller, kind, namespace, selection)
        listing = await self._driver.list(kind, namespace, **selection)
        everything = namespace is not None or self._access.sees_all(caller, kind)
        items = [
            secrets.shown(kind, document).raw
            for document in listing.items
            if everything or self._access.sees(caller, kind, document)
        ]
        head = {
            "apiVersion": kind.api_version,
            "kind": f"{kind.name}List",
            "metadata": {"resourceVersion": listing.version},
        }
        # Documents are joined as they rest: nothing is parsed to be written again.
        return json_response(json.dumps(head).encode()[:-1] + b', "items": [' + b",".join(items) + b"]}")

    async def get(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _place(request)
        if not await self._owns_token(caller, kind, name):
            self._access.require(caller, "view", kind, namespace, name)
        return self._answer(kind, await self._driver.get(kind, name, namespace))

    # --- writes

    async def create(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        namespace = request.path_params.get("namespace", "")
        data = await read_json(request)
        name = str((data.get("metadata") or {}).get("name") or "") if isinstance(data.get("metadata"), dict) else ""
        if kind.name == "Token":
            return await self._create_token(caller, kind, data)
        if kind.name == "Project":
            self._access.require_department(caller, kind, department_of(data))
        else:
            self._access.require(caller, "create", kind, namespace, name)
        if kind.name == "Workload":
            data = await self._presets.filled(data, namespace)
        document = references.admitted(kind, data, namespace=namespace, fresh=True)
        self._check_trusted(caller, kind, document, None)
        if kind.name == "Workload":
            self._presets.check(document)
        document = references.signed(kind, document, caller.subject)
        await references.check_references(self._driver, kind, document.data)
        if "dryRun" in request.query_params:
            await self._check_free(kind, document)
            return self._answer(kind, document, 201)
        return self._answer(kind, await self._driver.create(kind, document), 201)

    async def _check_free(self, kind: AnyKind, document: Document) -> None:
        with suppress(NotFound):
            await self._driver.get(kind, document.name, document.namespace)
            raise Exists(f"{kind.word} {document.name!r} already exists")

    async def replace(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _place(request)
        self._access.require(caller, _action(request), kind, namespace, name)
        data = await secrets.kept(self._driver, kind, await read_json(request), name)
        document = references.admitted(kind, data, name=name, namespace=namespace, fresh=False)
        if _wants_status(request):
            return self._answer(kind, await self._driver.update_status(kind, document))
        await self._check_move(caller, kind, document)
        if kind.name in references.TRUSTED:
            old = await self._driver.get(kind, name, namespace)
            self._check_trusted(caller, kind, document, old)
            if kind.name == "Workload":
                self._presets.check(document, old)
        await references.check_references(self._driver, kind, document.data)
        return self._answer(kind, await self._driver.update(kind, document))

    async def patch(self, request: Request, kind: AnyKind) -> Response:
        """RFC 7386. The result is checked as a whole, so a patch cannot make an object that a create could not."""
        caller = await self._caller(request)
        name, namespace = _place(request)
        self._access.require(caller, _action(request), kind, namespace, name)
        change = await read_json(request)
        version = (
            (change.get("metadata") or {}).get("resourceVersion") if isinstance(change.get("metadata"), dict) else None
        )
        status = _wants_status(request)
        for attempt in range(_PATCH_TRIES):
            try:
                return self._answer(kind, await self._patch_once(caller, kind, name, namespace, change, status))
            except Conflict:
                if version or attempt == _PATCH_TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _patch_once(
        self, caller: Caller, kind: AnyKind, name: str, namespace: str, change: Json, status: bool
    ) -> Document:
        old = await self._driver.get(kind, name, namespace)
        merged = object_rules.merged(old.data, change)
        new = references.admitted(kind, merged, name=name, namespace=namespace, fresh=False)
        await self._check_move(caller, kind, new, old)
        self._check_trusted(caller, kind, new, old)
        if kind.name == "Workload" and not status:
            self._presets.check(new, old)
        await references.check_references(self._driver, kind, new.data)
        # What differs after checking, not what was sent: the stored form is canonical.
        difference = object_rules.difference(old.data, new.data)
        version = str((merged.get("metadata") or {}).get("resourceVersion") or old.version)
        (difference.get("metadata") or {}).pop("resourceVersion", None)
        return await self._driver.patch(kind, name, namespace, difference, version=version, status=status)

    async def _check_move(self, caller: Caller, kind: AnyKind, new: Document, old: Document | None = None) -> None:
        """A project's own rules do not carry it into another department."""
        if kind.name != "Project":
            return
        before = department_of((old or await self._driver.get(kind, new.name)).data)
        if department_of(new.data) != before:
            self._access.require_department(caller, kind, department_of(new.data))

    def _check_trusted(self, caller: Caller, kind: AnyKind, new: Document, old: Document | None) -> None:
        """Where a pod runs, which GPUs it holds and who submitted a workload is not their owner's to say."""
        if references.trusted(kind, new) != references.trusted(kind, old):
            self._access.require(caller, "report", kind, new.namespace, new.name)

    async def delete(self, request: Request, kind: AnyKind) -> Response:
        caller = await self._caller(request)
        name, namespace = _place(request)
        if not await self._owns_token(caller, kind, name):
            self._access.require(caller, "delete", kind, namespace, name)
        options = await read_json(request, empty={})
        preconditions = _preconditions(options)
        await references.check_unreferenced(self._driver, kind, name)
        gone = await self._driver.delete(
            kind,
            name,
            namespace,
            version=str(preconditions.get("resourceVersion") or ""),
            uid=str(preconditions.get("uid") or ""),
            grace_seconds=_grace(request, options),
        )
        if kind.name == "Token":
            self._access.forget(name)
        with suppress(NotFound):  # it went between the two steps
            if not gone:
                return self._answer(kind, await self._driver.get(kind, name, namespace), 202)
        return json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200})

    async def _create_token(self, caller: Caller, kind: AnyKind, data: Json) -> Response:
        """The one object whose answer has more than what is stored: the token itself, this once."""
        document, text = secrets.new_token(kind, data, caller.subject)
        if document.data["spec"]["user"] != caller.subject:
            self._access.require(caller, "create", kind, "", document.name)
        await references.check_references(self._driver, kind, document.data)
        created = await self._driver.create(kind, document)
        return json_response({**secrets.shown(kind, created).data, "token": text.reveal()}, 201)

    async def _owns_token(self, caller: Caller, kind: AnyKind, name: str) -> bool:
        if kind.name != "Token" or self._access.may(caller, "delete", kind, "", name):
            return False
        try:
            return owns(caller, kind, await self._driver.get(kind, name))
        except NotFound:
            return False  # whether somebody else has a token of that name is not the caller's to know

    # --- watch

    def _watch(
        self, request: Request, caller: Caller, kind: AnyKind, namespace: str | None, selection: dict[str, str]
    ) -> Response:
        version = request.query_params.get("resourceVersion", "")
        if not version:
            raise Invalid.because(
                "watch", [Fault("resourceVersion", "is required")], hint="list first, watch from there"
            )
        changes = self._driver.watch(kind, namespace, version=version, **selection)
        seconds = _number(request, "timeoutSeconds")
        return StreamingResponse(self._lines(caller, kind, namespace, changes, seconds), media_type="application/json")

    async def _lines(
        self, caller: Caller, kind: AnyKind, namespace: str | None, changes: AsyncIterator[Change], seconds: int | None
    ) -> AsyncIterator[bytes]:
        """One JSON line a change, until the reader goes, the time is up or the server stops."""
        everything = namespace is not None or self._access.sees_all(caller, kind)
        turn = self._access.turn
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
                if turn != self._access.turn:
                    # Rights changed since: a stream may live long, and must not outlive them.
                    turn = self._access.turn
                    caller = await self._access.again(caller)
                    everything = namespace is not None or self._access.sees_all(caller, kind)
                    if namespace is not None:
                        self._access.require(caller, "view", kind, namespace)
                if change.document is None or everything or self._access.sees(caller, kind, change.document):
                    yield _line(kind, change)
        except StopAsyncIteration:
            return
        except PlatformError as exc:
            yield _event(b"ERROR", json.dumps(status_of(exc)).encode())
        finally:
            stop.cancel()
            if step is not None:
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
            await source.aclose()  # type: ignore[attr-defined]  # every body's watch is a generator

    # --- shared

    async def _caller(self, request: Request) -> Caller:
        return await self._access.authenticate(request.headers.get("authorization"))

    def _answer(self, kind: AnyKind, document: Document, status: int = 200) -> Response:
        return json_response(secrets.shown(kind, document).raw, status)


def _line(kind: AnyKind, change: Change) -> bytes:
    if change.document is None:
        head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"resourceVersion": change.version}}
        return _event(b"BOOKMARK", json.dumps(head).encode())
    return _event(change.type.encode(), secrets.shown(kind, change.document).raw)


def _event(type_: bytes, raw: bytes) -> bytes:
    return b'{"type":"' + type_ + b'","object":' + raw + b"}\n"


def _place(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("namespace", "")


def _selection(request: Request) -> dict[str, str]:
    query = request.query_params
    return {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}


def _action(request: Request) -> str:
    return "report" if _wants_status(request) else "edit"


def _check_rehearsal(request: Request, kind: AnyKind) -> None:
    """`dryRun=All`, as Kubernetes spells it. Whoever asks for one must never get the real thing."""
    asked = request.query_params.get("dryRun")
    if asked is None or request.method in ("GET", "HEAD"):
        return
    if asked != "All":
        raise Invalid.because("request", [Fault("dryRun", f"must be All, not {asked!r}")])
    if request.method != "POST" or kind.name == "Token":
        raise Invalid.because("request", [Fault("dryRun", "is possible only where an object is created")])


def _wants_status(request: Request) -> bool:
    return request.url.path.endswith("/status")


def _grace(request: Request, options: Json) -> int | None:
    given = options.get("gracePeriodSeconds")
    if given is None:
        return _number(request, "gracePeriodSeconds")
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= _LONGEST_SECONDS:
        raise Invalid.because(
            "delete", [Fault("gracePeriodSeconds", f"must be a whole number of seconds, not {given!r}")]
        )
    return given


def _preconditions(options: Json) -> Json:
    given = options.get("preconditions") or {}
    if not isinstance(given, dict):
        raise Invalid.because("delete", [Fault("preconditions", "must be an object")])
    return given


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > _LONGEST_SECONDS:
        raise Invalid.because("request", [Fault(name, f"must be a whole number of seconds, not {text!r}")])
    return int(text)
