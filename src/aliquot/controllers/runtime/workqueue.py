"""What every loop has: a queue of keys, one worker, and patience.

A loop is told *that* something changed, never what: it looks again and brings the world to what is wanted. A key that
is queued twice is worked on once; one that failed comes back later, each time a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from aliquot.errors import PlatformError
from aliquot.store.informer import Informer, Key

_FIRST_RETRY, _LAST_RETRY = 0.05, 60.0
log = structlog.get_logger()


class Controller:
    """Calls `reconcile(key)` for every key that was touched, one at a time."""

    def __init__(self, name: str, reconcile: Callable[[Key], Awaitable[None]]) -> None:
        self.name = name
        self._reconcile = reconcile
        self._waiting: dict[Key, None] = {}  # ordered, each key once
        self._bell = asyncio.Event()
        self._failures: dict[Key, int] = {}

    def touch(self, key: Key) -> None:
        self._waiting[key] = None
        self._bell.set()

    def later(self, key: Key, seconds: float) -> None:
        """Touch a key after a while, because time alone will change what is to be done."""
        asyncio.get_running_loop().call_later(seconds, self.touch, key)

    def follow(self, informer: Informer[Any]) -> None:
        """Touch the key of everything that changes there."""
        informer.listen(lambda key, old, new: self.touch(key))

    async def run(self) -> None:
        """Until cancelled; may be called again later."""
        while True:
            await self._bell.wait()
            while self._waiting:
                key = next(iter(self._waiting))
                del self._waiting[key]
                try:
                    await self._once(key)
                except asyncio.CancelledError:
                    self.touch(key)  # the next run, if there is one, takes it up
                    raise
            self._bell.clear()

    async def _once(self, key: Key) -> None:
        try:
            await self._reconcile(key)
            self._failures.pop(key, None)
        except PlatformError as exc:
            self._later(key, exc)
            if not exc.retry:
                log.warning("reconcile failed", loop=self.name, key="/".join(key), error=str(exc))
        except Exception as exc:  # one bad object must not stop the loop for the others
            log.exception("reconcile failed", loop=self.name, key="/".join(key))
            self._later(key, exc)

    def _later(self, key: Key, exc: Exception) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(_FIRST_RETRY * 2**failures, _LAST_RETRY)
        self.later(key, pause)
