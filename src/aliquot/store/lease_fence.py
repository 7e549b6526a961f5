"""Lease fencing: stops writes of a process that may no longer be the leader.

The leader election sets `MAY_WRITE` for the leader's tasks. It returns False as soon as the lease is too old, even if
the process was suspended and has not noticed. Drivers whose storage other processes also write to call `check` before
every write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from aliquot.errors import Unavailable

MAY_WRITE: ContextVar[Callable[[], bool]] = ContextVar("may_write", default=lambda: True)


def check() -> None:
    """Raises `Unavailable` when another process may lead by now. Nothing has been sent then."""
    if MAY_WRITE.get()():
        return
    fault = Unavailable("not written: this process is no longer the leader")
    fault.sent, fault.retry = False, False
    raise fault
