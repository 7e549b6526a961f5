"""Every error response and foreign exception becomes one of our errors, in one line, without secrets."""

from __future__ import annotations

import inspect
import json

import aiohttp
import aiohttp.client_exceptions
import pytest

from aliquot import errors
from aliquot.errors import PlatformError, Unavailable
from aliquot.store.http.client import FOREIGN, NOT_SENT, translate
from aliquot.store.http.errors import Busy, error_of

ANSWERS = [
    (400, "BadRequest", errors.Invalid),
    (401, "Unauthorized", errors.Unauthenticated),
    (403, "Forbidden", errors.Denied),
    (404, "NotFound", errors.NotFound),
    (405, "MethodNotAllowed", errors.Invalid),
    (409, "AlreadyExists", errors.Exists),
    (409, "Conflict", errors.Conflict),
    (410, "Expired", errors.Expired),
    (413, "RequestEntityTooLarge", errors.TooLarge),
    (422, "Invalid", errors.Invalid),
    (422, "OverLimit", errors.OverLimit),
    (429, "TooManyRequests", errors.Unavailable),
    (500, "InternalError", errors.Unavailable),
    (503, "ServiceUnavailable", errors.Unavailable),
    (504, "Timeout", errors.Unavailable),
    (507, "InsufficientStorage", errors.OutOfSpace),
    (302, "", errors.Invalid),
]
# What the HTTP library can raise that is not for us: it is about websockets, which no request here uses.
ELSEWHERE = {"WSMessageTypeError"}


@pytest.mark.parametrize(("status", "reason", "expected"), ANSWERS)
def test_answer_becomes_our_error(status: int, reason: str, expected: type[PlatformError]) -> None:
    """Status and reason decide the class; the message is the server's, in one line."""
    status_object = json.dumps({"kind": "Status", "code": status, "reason": reason, "message": "what\n  happened"})

    error = error_of(status, status_object.encode())

    assert isinstance(error, expected)
    assert error.message == "what happened"


def test_every_error_of_ours_comes_back() -> None:
    """The client raises the error class that our server raised."""
    for error in PlatformError.__subclasses__():
        status_object = json.dumps({"reason": error.reason, "message": "m"}).encode()
        assert type(error_of(error.status, status_object)) is error


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"<html>\nlogin</html>", b"\xff\xfe", b'{"message": 5}'])
def test_any_payload_is_bearable(payload: bytes) -> None:
    """Any response of a proxy becomes an error with a message."""
    error = error_of(502, payload)

    assert isinstance(error, Unavailable)
    assert error.message
    assert "\n" not in error.message


def test_long_answer_is_shortened() -> None:
    """An HTML page does not become the message."""
    assert len(error_of(500, b"x" * 100_000).message) < 1100


def test_causes_become_faults() -> None:
    """Each cause of an invalid request is a fault with its field; malformed ones are left out."""
    causes = [{"field": "spec.a", "message": "is wrong"}, {"field": "<nil>", "message": "too"}, "odd", {"field": "x"}]
    status_object = json.dumps({"message": "m", "details": {"causes": causes}}).encode()

    assert [str(fault) for fault in error_of(422, status_object).faults] == ["spec.a: is wrong", "too"]


def test_full_etcd_is_out_of_space() -> None:
    """An internal error about etcd's space becomes a full disk."""
    assert isinstance(error_of(500, b'{"message": "etcdserver: mvcc: database space exceeded"}'), errors.OutOfSpace)


@pytest.mark.parametrize(("header", "pause"), [("3", 3.0), ("", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)])
def test_busy_server_says_how_long(header: str, pause: float) -> None:
    """A rejected request had no effect, and may have a retry time."""
    error = error_of(429, b"later", retry_after=header)

    assert isinstance(error, Busy)
    assert (error.pause, error.sent) == (pause, False)


def test_every_foreign_exception_is_known() -> None:
    """The list of translated exceptions covers all that the HTTP library can raise."""
    exceptions = {
        name: cls
        for name, cls in inspect.getmembers(aiohttp.client_exceptions, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__.startswith("aiohttp")
    }

    assert len(exceptions) > 20
    assert {name for name, cls in exceptions.items() if not issubclass(cls, FOREIGN)} == ELSEWHERE


def test_only_unsent_requests_are_unsent() -> None:
    """Only a failed connection is certain to have sent nothing."""
    unsent = {
        name
        for name, cls in inspect.getmembers(aiohttp.client_exceptions, inspect.isclass)
        if issubclass(cls, NOT_SENT) and cls.__module__.startswith("aiohttp")
    }

    assert unsent == {
        "ClientConnectorCertificateError",
        "ClientConnectorDNSError",
        "ClientConnectorError",
        "ClientConnectorSSLError",
        "ClientProxyConnectionError",
        "ClientSSLError",
        "ConnectionTimeoutError",
        "InvalidURL",
        "InvalidUrlClientError",
        "InvalidUrlRedirectClientError",
        "UnixClientConnectorError",
    }


@pytest.mark.parametrize("exc", [TimeoutError(), OSError(), aiohttp.ClientPayloadError("cut")])
def test_foreign_exception_has_a_message(exc: Exception) -> None:
    """Exceptions without a message become a sentence with the address."""
    error = translate(exc, "https://host")

    assert error.message.startswith("cannot reach https://host: ")
    assert len(error.message) > len("cannot reach https://host: ")
    assert error.sent
