"""Translates HTTP error answers into platform errors.

Kubernetes and our own server answer with a `Status` object: a code, a reason, a message, and for invalid input the
causes with their fields. A proxy in between may answer with any text, which then becomes the message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aliquot.api import Json
from aliquot.errors import (
    Conflict,
    Denied,
    Exists,
    Expired,
    Fault,
    Invalid,
    NotFound,
    OutOfSpace,
    OverLimit,
    PlatformError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

LONGEST_MESSAGE = 1000  # characters; enough for any message, and it cuts stack traces
# The answer of a Go API server for a path it does not serve.
NO_SUCH_PATH = "404 page not found"
# Not a cause: the API server adds it when it skipped the CEL rules because the schema did not hold.
UNCHECKED = "some validation rules were not checked"
KIND_HINT = "the server does not know this kind; are our custom resources installed there?"

_BY_STATUS: dict[int, type[PlatformError]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Denied,
    404: NotFound,
    409: Conflict,
    410: Expired,
    413: TooLarge,
    422: Invalid,
    429: Unavailable,
    507: OutOfSpace,
}
# One status has several meanings; the reason tells which.
_BY_REASON: dict[tuple[int, str], type[PlatformError]] = {
    (409, Exists.reason): Exists,
    (422, OverLimit.reason): OverLimit,
}
# Messages of etcd that the API server passes on with status 500.
_BY_ETCD: dict[str, type[PlatformError]] = {
    "etcdserver: request is too large": TooLarge,
    "mvcc: database space exceeded": OutOfSpace,
}


class Busy(Unavailable):
    """The server rejected the request unread, possibly with a time to retry after."""

    sent = False

    def __init__(self, message: str, *, pause: float = 0.0, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message, faults=faults)
        self.pause = pause


def error_of(status: int, payload: bytes, *, retry_after: str = "") -> PlatformError:
    """The error for an answer that is not a success, whatever its payload."""
    return error_from(status, _status_object(payload), retry_after=retry_after)


def error_from(status: int, body: Json, *, retry_after: str = "") -> PlatformError:
    """The same for a parsed `Status`, as a watch delivers it."""
    message = one_line(body.get("message")) or f"the server answered {status} without a reason"
    if status == 429:
        return Busy(message, pause=float(retry_after) if retry_after.isdigit() else 0.0, faults=_faults(body))
    hint = KIND_HINT if status == 404 and message == NO_SUCH_PATH else _hint(body)
    return _class_of(status, str(body.get("reason") or ""), message)(message, faults=_faults(body), hint=hint)


def one_line(text: object) -> str:
    """Any text as one line of limited length."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST_MESSAGE else line[:LONGEST_MESSAGE] + "..."


def _class_of(status: int, reason: str, message: str) -> type[PlatformError]:
    if status >= 500:
        for sign, error in _BY_ETCD.items():
            if sign in message:
                return error
    known = _BY_REASON.get((status, reason)) or _BY_STATUS.get(status)
    # Any other status below 500, such as a redirect, is a fault of the request: a retry would get the same answer.
    return known or (Unavailable if status >= 500 else Invalid)


def _faults(body: Json) -> list[Fault]:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    valid = [cause for cause in (causes if isinstance(causes, list) else ()) if isinstance(cause, dict)]
    faults = [Fault(_path(cause.get("field")), one_line(cause.get("message"))) for cause in valid]
    return [fault for fault in faults if fault.text and UNCHECKED not in fault.text]


def _hint(body: Json) -> str:
    """The hint that our own server adds."""
    details = body.get("details")
    return one_line(details.get("hint")) if isinstance(details, dict) else ""


def _path(field: object) -> str:
    """The field's path; Kubernetes writes "<nil>" for the whole object."""
    return "" if field in (None, "<nil>") else str(field)


def _status_object(payload: bytes) -> Json:
    try:
        body: Any = json.loads(payload)
    except ValueError:
        body = None
    if isinstance(body, dict) and body.get("message"):
        return body
    return {"message": payload[:4096].decode(errors="replace")}
