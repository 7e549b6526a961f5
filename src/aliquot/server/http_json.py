"""JSON over HTTP: request bodies, responses, and errors as Kubernetes `Status` objects."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from aliquot.api import Json
from aliquot.api.serialization import MAX_DEPTH
from aliquot.errors import Fault, Invalid, PlatformError, TooLarge

# Twice the largest object, so that a slightly too large object gets the error message about its own limit.
MAX_BODY = 2 << 20
_JSON_TYPES = ("application/json", "application/merge-patch+json")


def json_response(content: bytes | Json, status: int = 200) -> Response:
    raw = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    return Response(raw, status, media_type="application/json")


def status_of(error: PlatformError) -> Json:
    """The error as a `Status` object, which clients of Kubernetes-shaped APIs expect."""
    details: Json = {
        "causes": [
            {"field": fault.path, "message": fault.text, "reason": "FieldValueInvalid"} for fault in error.faults
        ]
    }
    if error.hint:
        details["hint"] = error.hint
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": {key: value for key, value in details.items() if value},
        "code": error.status,
    }


def error_response(error: PlatformError) -> Response:
    response = json_response(status_of(error), error.status)
    if error.status == 401:
        response.headers["www-authenticate"] = 'Bearer realm="aliquot"'
    if error.retry and error.status == 503:
        response.headers["retry-after"] = "1"
    return response


async def read_json(request: Request, *, empty: Json | None = None) -> Json:
    """The request body as a JSON object; `TooLarge` before it fills memory, `Invalid` with line and column.

    `empty` is returned for a request without a body; unless it is given, a body is required."""
    if len(request.headers.getlist("content-type")) > 1:
        raise Invalid("content-type is given more than once", hint="send application/json")
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type not in _JSON_TYPES:
        raise Invalid(f"content type {content_type!r} is not understood", hint="send application/json")
    raw = await _read(request)
    if not raw:
        if empty is None:
            raise Invalid("the body is empty", hint="send one JSON object")
        return empty
    data = parse_json(raw)
    if not isinstance(data, dict):
        raise Invalid("the body must be a JSON object")
    return data


async def _read(request: Request) -> bytes:
    parts, size = [], 0
    if int(request.headers.get("content-length") or 0) > MAX_BODY:
        raise _too_large()
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {MAX_BODY} bytes", hint="send one object at a time")


def parse_json(raw: bytes) -> Any:
    try:
        data = json.loads(raw.decode(), parse_constant=_refuse_constant, parse_float=_finite_number)
    except json.JSONDecodeError as exc:
        raise Invalid.because(
            "broken JSON", [Fault("", f"line {exc.lineno}, column {exc.colno}: {exc.msg.lower()}")]
        ) from None
    except UnicodeDecodeError:
        raise Invalid("the body is not UTF-8 text") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
    except ValueError as exc:
        raise Invalid(f"broken JSON: {exc}") from None
    # Only few bodies have enough brackets to be that deep, so only those are checked.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _is_too_deep(data):
        raise Invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
    return data


def _is_too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for value in level
            if isinstance(value, (dict, list))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
    return any(isinstance(value, (dict, list)) for value in level)


def _finite_number(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
