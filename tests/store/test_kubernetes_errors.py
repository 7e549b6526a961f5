"""Every answer and every exception from outside becomes one of our errors, in one line, without secrets."""

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
    said = json.dumps({"kind": "Status", "code": status, "reason": reason, "message": "what\n  happened"})

    error = error_of(status, said.encode())

    assert isinstance(error, expected)
    assert error.message == "what happened"


def test_every_error_of_ours_comes_back() -> None:
    """What our own server raises is what its client raises."""
    for error in PlatformError.__subclasses__():
        said = json.dumps({"reason": error.reason, "message": "m"}).encode()
        assert type(error_of(error.status, said)) is error


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"<html>\nlogin</html>", b"\xff\xfe", b'{"message": 5}'])
def test_any_payload_is_bearable(payload: bytes) -> None:
    """Whatever a proxy answers, there is an error with a message."""
    error = error_of(502, payload)

    assert isinstance(error, Unavailable)
    assert error.message
    assert "\n" not in error.message


def test_long_answer_is_shortened() -> None:
    """A page of HTML does not become the message."""
    assert len(error_of(500, b"x" * 100_000).message) < 1100


def test_causes_become_faults() -> None:
    """Each cause of bad input is a fault with its field; odd ones are left out."""
    causes = [{"field": "spec.a", "message": "is wrong"}, {"field": "<nil>", "message": "too"}, "odd", {"field": "x"}]
    said = json.dumps({"message": "m", "details": {"causes": causes}}).encode()

    assert [str(fault) for fault in error_of(422, said).faults] == ["spec.a: is wrong", "too"]


def test_full_etcd_is_out_of_space() -> None:
    """The API server hands on etcd's complaint as an internal error; it means that the disk is full."""
    assert isinstance(error_of(500, b'{"message": "etcdserver: mvcc: database space exceeded"}'), errors.OutOfSpace)


@pytest.mark.parametrize(("header", "pause"), [("3", 3.0), ("", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)])
def test_busy_server_says_how_long(header: str, pause: float) -> None:
    """A server that turns a request away did nothing, and may say when to come back."""
    error = error_of(429, b"later", retry_after=header)

    assert isinstance(error, Busy)
    assert (error.pause, error.sent) == (pause, False)


def test_every_foreign_exception_is_known() -> None:
    """The list of what is translated covers all the HTTP library can raise."""
    found = {
        name: cls
        for name, cls in inspect.getmembers(aiohttp.client_exceptions, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__.startswith("aiohttp")
    }

    assert len(found) > 20
    assert {name for name, cls in found.items() if not issubclass(cls, FOREIGN)} == ELSEWHERE


def test_only_unsent_requests_are_unsent() -> None:
    """Of what can happen, only a connection that never came about leaves no doubt."""
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
    """Even exceptions that say nothing become a sentence with the address."""
    error = translate(exc, "https://host")

    assert error.message.startswith("cannot reach https://host: ")
    assert len(error.message) > len("cannot reach https://host: ")
    assert error.sent
