"""The OpenAPI 3.1 document of the REST API, generated from the table of kinds and their schemas."""

from __future__ import annotations

from typing import Any

from aliquot import __version__
from aliquot.api import KINDS, Json, Kind
from aliquot.api.schema import component_schemas
from aliquot.server.explain import EXPLANATION, SCENARIO
from aliquot.server.kubeconfig_routes import KUBECONFIG
from aliquot.server.object_routes import PREFIX

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
        collection = f"{PREFIX}/{kind.plural}"
        if kind.namespaced:
            paths[collection] = {"get": _list(kind, "in every namespace you may see", [])}
            collection = f"{PREFIX}/namespaces/{{namespace}}/{kind.plural}"
        parameters = [_path_parameter("namespace")] if kind.namespaced else []
        paths[collection] = {"get": _list(kind, "", parameters), "post": _create(kind, parameters)}
        item = f"{collection}/{{name}}"
        parameters = [*parameters, _path_parameter("name")]
        paths[item] = _item(kind, parameters, "")
        if kind.has_status:
            status = _item(kind, parameters, "Status")
            del status["delete"]
            paths[f"{item}/status"] = status
    paths[f"{PREFIX}/whoami"] = {
        "get": _operation("whoami", "Who you are and what you were granted", {"type": "object"})
    }
    paths[EXPLANATION] = {"get": _explanation()}
    paths[KUBECONFIG] = {"post": _kubeconfig()}
    summary = "What the scheduler looked at last, as a scenario for `aliquot simulate`"
    paths[SCENARIO] = {"get": _operation("scenario", summary, {"type": "object"})}
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
    """The schemas of the types as clients see them: without fields that the server sets or never returns."""
    schemas = {**component_schemas(), "Status": _status_schema()}
    for kind in KINDS:
        spec = schemas.get(f"{kind.name}Spec")
        if kind.generated_fields:
            _leave_out_generated_fields(kind, schemas)
        elif kind.hidden_field and spec:
            hidden = spec["properties"][kind.hidden_field]
            spec["properties"][kind.hidden_field] = {**hidden, "writeOnly": True}
        if kind.create_response_fields:
            extra = {name: {"type": "string", "description": text} for name, text in kind.create_response_fields}
            stored = schemas[kind.name]
            schemas[_create_response(kind)] = {**stored, "properties": {**stored["properties"], **extra}}
    return schemas


def _leave_out_generated_fields(kind: Kind[Any], schemas: Json) -> None:
    """Clients do not send the generated fields, and may leave out the owner, which is the caller unless given."""
    spec_name = f"{kind.name}Spec"
    spec, whole = schemas[spec_name], schemas[kind.name]
    optional = (*kind.generated_fields, kind.owner_field)
    required = [name for name in spec["required"] if name not in optional]
    properties = {name: schema for name, schema in spec["properties"].items() if name not in kind.generated_fields}
    schemas[spec_name] = {**spec, "properties": properties, "required": required}
    if not required:
        schemas[kind.name] = {**whole, "required": [name for name in whole["required"] if name != "spec"]}


def _create_response(kind: Kind[Any]) -> str:
    """Name of the schema of the response to a create."""
    return f"New{kind.name}" if kind.create_response_fields else kind.name


def _list(kind: Kind[Any], where: str, path_parameters: list[Json]) -> Json:
    items = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": _ref(kind)}, "metadata": {"type": "object"}},
        "required": ["items", "metadata"],
    }
    suffix = "ForAllNamespaces" if where else ""
    operation = _operation(f"list{kind.name}{suffix}", f"List or watch {kind.plural} {where}".strip(), items)
    query = [
        {"name": name, "in": "query", "schema": {"type": type_}, "description": text}
        for name, (type_, text) in _QUERY.items()
    ]
    return {**operation, "parameters": [*path_parameters, *query]}


def _create(kind: Kind[Any], path_parameters: list[Json]) -> Json:
    answer = {"$ref": f"#/components/schemas/{_create_response(kind)}"}
    operation = _operation(f"create{kind.name}", f"Create a {kind.singular}", answer, code="201", body=_ref(kind))
    dry_run = [{"name": "dryRun", "in": "query", "schema": {"enum": ["All"]}}] if kind.supports_dry_run else []
    return {**operation, "parameters": [*path_parameters, *dry_run]}


def _explanation() -> Json:
    """Only the fields that every response has; the rest depends on the workload's state."""
    text = {"type": "string"}
    line = {"type": "object", "properties": {"about": text, "text": text}, "required": ["about", "text"]}
    answer = {
        "type": "object",
        "properties": {"workload": text, "state": text, "lines": {"type": "array", "items": line}},
        "required": ["workload", "namespace", "state", "decidedAt", "lines"],
    }
    description = "Also try out what would let it run now; takes up to a few seconds."
    what_if = {"name": "whatIf", "in": "query", "schema": {"type": "boolean"}, "description": description}
    operation = _operation("explainWorkload", "How a workload stands and why, by the scheduler's last plan", answer)
    return {**operation, "parameters": [_path_parameter("namespace"), _path_parameter("name"), what_if]}


def _kubeconfig() -> Json:
    text = {"type": "string"}
    request = {
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
    summary = "A kubeconfig with which a user reaches the project's namespace, on Kubernetes"
    operation = _operation("createProjectKubeconfig", summary, answer, code="201", body=request)
    return {**operation, "parameters": [_path_parameter("name")]}


def _item(kind: Kind[Any], path_parameters: list[Json], part: str) -> Json:
    subject = f"the status of a {kind.singular}" if part else f"a {kind.singular}"
    patch = {"type": "object", "description": "JSON merge patch (RFC 7386)"}
    name = f"{kind.name}{part}"
    return {
        "parameters": path_parameters,
        "get": _operation(f"get{name}", f"Read {subject}", _ref(kind)),
        "put": _operation(
            f"replace{name}", f"Replace {subject}, if its version is current", _ref(kind), body=_ref(kind)
        ),
        "patch": _operation(
            f"patch{name}", f"Change parts of {subject}", _ref(kind), body=patch, media="application/merge-patch+json"
        ),
        "delete": {
            **_operation(f"delete{name}", f"Delete {subject}", {"type": "object"}),
            "parameters": [{"name": "gracePeriodSeconds", "in": "query", "schema": {"type": "integer", "minimum": 0}}],
        },
    }


def _operation(
    name: str,
    summary: str,
    answer: Json,
    *,
    code: str = "200",
    body: Json | None = None,
    media: str = "application/json",
) -> Json:
    done = {"description": "Done", "content": {"application/json": {"schema": answer}}}
    refused = {"description": "Refused: says why and what to do", "content": {"application/json": {"schema": _STATUS}}}
    responses = {code: done, "202": done, "4XX": refused, "503": refused, "507": refused}
    operation: Json = {"operationId": name, "summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {media: {"schema": body}}}
    return operation


def _path_parameter(name: str) -> Json:
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
