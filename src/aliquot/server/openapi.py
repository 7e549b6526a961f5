"""The OpenAPI 3.1 description of the REST API, written from the table of kinds and their schemas."""

from __future__ import annotations

from typing import Any

from aliquot import __version__
from aliquot.api import KINDS, Kind
from aliquot.api.base import Json
from aliquot.api.schema import component_schemas
from aliquot.server.explain import EXPLANATION, SCENARIO
from aliquot.server.kubeconfigs import KUBECONFIG
from aliquot.server.objects import PREFIX

_STATUS = {"$ref": "#/components/schemas/Status"}
_QUERY = {
    "labelSelector": ("string", "Only objects with these labels: `app=web`, `app in (a, b)`."),
    "fieldSelector": ("string", "Only objects with these fields: `metadata.name=x`."),
    "watch": ("boolean", "Stream changes after `resourceVersion` as JSON lines instead of listing."),
    "resourceVersion": ("string", "Where a watch starts: the version a list gave."),
    "timeoutSeconds": ("integer", "How long a watch may last."),
}


def document() -> Json:
    paths: Json = {}
    for kind in KINDS:
        many = f"{PREFIX}/{kind.plural}"
        if kind.namespaced:
            paths[many] = {"get": _list(kind, "in every namespace you may see", [])}
            many = f"{PREFIX}/namespaces/{{namespace}}/{kind.plural}"
        place = [_in_path("namespace")] if kind.namespaced else []
        paths[many] = {"get": _list(kind, "", place), "post": _create(kind, place)}
        one = f"{many}/{{name}}"
        place = [*place, _in_path("name")]
        paths[one] = _one(kind, place, "")
        if kind.has_status:
            status = _one(kind, place, "Status")
            del status["delete"]
            paths[f"{one}/status"] = status
    paths[f"{PREFIX}/whoami"] = {
        "get": _operation("whoami", "Who you are and what you were granted", {"type": "object"})
    }
    paths[EXPLANATION] = {"get": _explanation()}
    paths[KUBECONFIG] = {"post": _kubeconfig()}
    whole = "What the scheduler looked at last, as a scenario for `aliquot simulate`"
    paths[SCENARIO] = {"get": _operation("scenario", whole, {"type": "object"})}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Aliquot",
            "version": __version__,
            "description": "Objects of the platform, in the shape of the Kubernetes API: list, watch, version, patch.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas() -> Json:
    """Those of the types, as clients see them: what the server keeps to itself is left out."""
    schemas = {**component_schemas(), "Status": _status_schema()}
    token, spec = schemas["Token"], schemas["TokenSpec"]
    schemas["TokenSpec"] = {
        **spec,
        "properties": {name: part for name, part in spec["properties"].items() if name != "hash"},
        "required": [],  # the user is the caller unless given
    }
    text = {"type": "string", "description": "What to send as `Authorization: Bearer <token>`. Shown this once."}
    schemas["Token"] = {**token, "required": ["metadata"]}
    schemas["NewToken"] = {**token, "properties": {**token["properties"], "token": text}, "required": ["metadata"]}
    user = schemas["UserSpec"]["properties"]["passwordHash"]
    schemas["UserSpec"]["properties"]["passwordHash"] = {**user, "writeOnly": True}
    return schemas


def _list(kind: Kind[Any], where: str, place: list[Json]) -> Json:
    items = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": _ref(kind)}, "metadata": {"type": "object"}},
        "required": ["items", "metadata"],
    }
    suffix = "ForAllNamespaces" if where else ""
    operation = _operation(f"list{kind.name}{suffix}", f"List or watch {kind.plural} {where}".strip(), items)
    query = [
        {"name": name, "in": "query", "schema": {"type": form}, "description": text}
        for name, (form, text) in _QUERY.items()
    ]
    return {**operation, "parameters": [*place, *query]}


def _create(kind: Kind[Any], place: list[Json]) -> Json:
    answer = {"$ref": "#/components/schemas/NewToken"} if kind.name == "Token" else _ref(kind)
    operation = _operation(f"create{kind.name}", f"Create a {kind.word}", answer, code="201", body=_ref(kind))
    rehearsal = [] if kind.name == "Token" else [{"name": "dryRun", "in": "query", "schema": {"enum": ["All"]}}]
    return {**operation, "parameters": [*place, *rehearsal]}


def _explanation() -> Json:
    """Only what every answer has; the rest depends on how the job stands."""
    text = {"type": "string"}
    line = {"type": "object", "properties": {"about": text, "text": text}, "required": ["about", "text"]}
    answer = {
        "type": "object",
        "properties": {"workload": text, "state": text, "lines": {"type": "array", "items": line}},
        "required": ["workload", "namespace", "state", "decidedAt", "lines"],
    }
    told = "Also try out what would let it run now; takes up to a few seconds."
    what_if = {"name": "whatIf", "in": "query", "schema": {"type": "boolean"}, "description": told}
    operation = _operation("explainWorkload", "How a workload stands and why, by the scheduler's last plan", answer)
    return {**operation, "parameters": [_in_path("namespace"), _in_path("name"), what_if]}


def _kubeconfig() -> Json:
    text = {"type": "string"}
    asked = {
        "type": "object",
        "properties": {
            "user": {**text, "description": "Whose rights it has."},
            "duration": {**text, "description": "How long it works, such as 24h, which is the default."},
        },
        "required": ["user"],
    }
    fields = dict.fromkeys(("user", "project", "namespace", "expires"), text)
    answer = {
        "type": "object",
        "properties": {**fields, "kubeconfig": {"type": "object", "description": "With its token, shown this once."}},
        "required": ["user", "project", "namespace", "expires", "kubeconfig"],
    }
    told = "A kubeconfig with which a user reaches the project's namespace, on Kubernetes"
    operation = _operation("createProjectKubeconfig", told, answer, code="201", body=asked)
    return {**operation, "parameters": [_in_path("name")]}


def _one(kind: Kind[Any], place: list[Json], part: str) -> Json:
    of = f"the status of a {kind.word}" if part else f"a {kind.word}"
    patch = {"type": "object", "description": "JSON merge patch (RFC 7386)"}
    name = f"{kind.name}{part}"
    return {
        "parameters": place,
        "get": _operation(f"get{name}", f"Read {of}", _ref(kind)),
        "put": _operation(f"replace{name}", f"Replace {of}, if its version is current", _ref(kind), body=_ref(kind)),
        "patch": _operation(
            f"patch{name}", f"Change parts of {of}", _ref(kind), body=patch, media="application/merge-patch+json"
        ),
        "delete": {
            **_operation(f"delete{name}", f"Delete {of}", {"type": "object"}),
            "parameters": [{"name": "gracePeriodSeconds", "in": "query", "schema": {"type": "integer", "minimum": 0}}],
        },
    }


def _operation(
    name: str, text: str, answer: Json, *, code: str = "200", body: Json | None = None, media: str = "application/json"
) -> Json:
    done = {"description": "Done", "content": {"application/json": {"schema": answer}}}
    refused = {"description": "Refused: says why and what to do", "content": {"application/json": {"schema": _STATUS}}}
    responses = {code: done, "202": done, "4XX": refused, "503": refused, "507": refused}
    operation: Json = {"operationId": name, "summary": text, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {media: {"schema": body}}}
    return operation


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _ref(kind: Kind[Any]) -> Json:
    return {"$ref": f"#/components/schemas/{kind.name}"}


def _status_schema() -> Json:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "Why a request was refused.",
        "required": ["kind", "status", "message", "reason", "code"],
        "properties": {
            "kind": {"const": "Status"},
            "apiVersion": text,
            "metadata": {"type": "object"},
            "status": {"const": "Failure"},
            "message": text,
            "reason": text,
            "details": {"type": "object"},
            "code": {"type": "integer"},
        },
    }
