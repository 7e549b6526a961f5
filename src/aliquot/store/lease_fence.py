"""Whether the work that is under way may still write.

Who leads says so for its work, and stops saying so the moment its lease is too old, also when the process stood still
and has not noticed yet. Bodies that others write to as well ask before every write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from aliquot.errors import Unavailable

MAY_WRITE: ContextVar[Callable[[], bool]] = ContextVar("may_write", default=lambda: True)


def check() -> None:
    """`Unavailable`, and nothing was done, when somebody else may decide by now."""
    if MAY_WRITE.get()():
        return
    fault = Unavailable("not written: this process may no longer decide")
    fault.sent, fault.retry = False, False
    raise fault
