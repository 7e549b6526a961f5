"""The exception tree of the platform.

    PlatformError
      Invalid          400  the input is wrong; lists every fault with its path
      Unauthenticated  401  no token, or an unknown one
      Denied           403  authenticated, but not allowed
      NotFound         404
      Exists           409  the name is taken
      Conflict         409  the object has changed since it was read: read and decide again    (retry)
      Expired          410  the version is too old to watch from: list again
      TooLarge         413  the request or the object is too large
      OverLimit        422  valid, but more than a limit allows
      Unavailable      503  not available now; whether the request took effect is unknown      (retry)
      OutOfSpace       507  the disk is full; nothing has changed

The class decides the HTTP status, the `reason` on the wire, and whether to retry the same request.
The message says what happened, with the facts; the hint says what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One error in an input: its path (`spec.quota.gpu`) and the rule it breaks."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class PlatformError(Exception):
    """An error with an explanation for the user."""

    status = 500
    reason = "InternalError"
    retry = False

    def __init__(self, message: str, *, hint: str = "", faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class Invalid(PlatformError):
    status, reason = 400, "Invalid"

    @classmethod
    def because(cls, what: str, faults: Sequence[Fault], *, hint: str = "") -> Invalid:
        """One line that names every fault: `project: spec.quota.gpu: must be a number`."""
        return cls(f"{what}: " + "; ".join(map(str, faults)), faults=faults, hint=hint)


class Unauthenticated(PlatformError):
    status, reason = 401, "Unauthorized"


class Denied(PlatformError):
    status, reason = 403, "Forbidden"


class NotFound(PlatformError):
    status, reason = 404, "NotFound"


class Exists(PlatformError):
    status, reason = 409, "AlreadyExists"


class Conflict(PlatformError):
    status, reason, retry = 409, "Conflict", True


class Expired(PlatformError):
    status, reason = 410, "Expired"


class TooLarge(PlatformError):
    status, reason = 413, "RequestEntityTooLarge"


class OverLimit(PlatformError):
    status, reason = 422, "OverLimit"


class Unavailable(PlatformError):
    status, reason, retry = 503, "ServiceUnavailable", True
    # False: the request had no effect, because it never arrived or was rejected unread.
    sent = True


class OutOfSpace(PlatformError):
    status, reason = 507, "InsufficientStorage"
