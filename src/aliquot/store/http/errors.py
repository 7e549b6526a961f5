"""What an HTTP answer says went wrong, as one of our errors.

Kubernetes and our own server answer with a `Status` object: a code, a reason word, a message, and for bad input the
causes with their fields. A proxy on the way answers with whatever it likes; then its text is the message.
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

LONGEST_MESSAGE = 1000  # characters; a stack trace of a server says nothing more after that
# What an API server written in Go says of a path it does not serve.
NO_SUCH_PATH = "404 page not found"
# A cause that is none: with a broken schema, rules are not looked at.
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
# What etcd says through the API server, which has no status of its own for it.
_BY_ETCD: dict[str, type[PlatformError]] = {
    "etcdserver: request is too large": TooLarge,
    "mvcc: database space exceeded": OutOfSpace,
}


class Busy(Unavailable):
    """The server turned the request away unread and may have said for how long."""

    sent = False

    def __init__(self, message: str, *, pause: float = 0.0, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message, faults=faults)
        self.pause = pause


def error_of(status: int, payload: bytes, *, retry_after: str = "") -> PlatformError:
    """The error for an answer that is not a success. Never raises, whatever the payload is."""
    return error_from(status, _status_object(payload), retry_after=retry_after)


def error_from(status: int, said: Json, *, retry_after: str = "") -> PlatformError:
    """The same for a `Status` that has been read already, as a watch brings it."""
    message = one_line(said.get("message")) or f"the server answered {status} without a reason"
    if status == 429:
        return Busy(message, pause=float(retry_after) if retry_after.isdigit() else 0.0, faults=_faults(said))
    hint = KIND_HINT if status == 404 and message == NO_SUCH_PATH else _hint(said)
    return _class_of(status, str(said.get("reason") or ""), message)(message, faults=_faults(said), hint=hint)


def one_line(text: object) -> str:
    """Any text as one line of bearable length."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= LONGEST_MESSAGE else line[:LONGEST_MESSAGE] + "..."


def _class_of(status: int, reason: str, message: str) -> type[PlatformError]:
    if status >= 500:
        for sign, error in _BY_ETCD.items():
            if sign in message:
                return error
    found = _BY_REASON.get((status, reason)) or _BY_STATUS.get(status)
    # The rest below 500 blames the request: a redirect or a method not allowed will be the same next time.
    return found or (Unavailable if status >= 500 else Invalid)


def _faults(said: Json) -> list[Fault]:
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [cause for cause in (causes if isinstance(causes, list) else ()) if isinstance(cause, dict)]
    faults = [Fault(_path(cause.get("field")), one_line(cause.get("message"))) for cause in found]
    return [fault for fault in faults if fault.text and UNCHECKED not in fault.text]


def _hint(said: Json) -> str:
    """What to do next, where our own server says so."""
    details = said.get("details")
    return one_line(details.get("hint")) if isinstance(details, dict) else ""


def _path(field: object) -> str:
    """Kubernetes calls the whole object "<nil>"."""
    return "" if field in (None, "<nil>") else str(field)


def _status_object(payload: bytes) -> Json:
    try:
        said: Any = json.loads(payload)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("message"):
        return said
    return {"message": payload[:4096].decode(errors="replace")}
