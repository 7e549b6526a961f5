"""The controller runtime: a workqueue of keys, one worker, and retries with backoff.

A controller learns *that* an object changed, never what changed. Its `reconcile` reads the object again and brings the
world to the wanted state. A key that is queued twice is reconciled once. A key that failed is retried with a growing
delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from aliquot.errors import PlatformError
from aliquot.store.informer import Informer, Key

_FIRST_RETRY, _LAST_RETRY = 0.05, 60.0  # seconds
log = structlog.get_logger()


class Controller:
    """Calls `reconcile(key)` for every queued key, one at a time."""

    def __init__(self, name: str, reconcile: Callable[[Key], Awaitable[None]]) -> None:
        self.name = name
        self._reconcile = reconcile
        self._queue: dict[Key, None] = {}  # ordered, each key once
        self._wake = asyncio.Event()
        self._failures: dict[Key, int] = {}

    @property
    def idle(self) -> bool:
        """Whether every queued key was reconciled. Keys that wait for a later time do not count."""
        return not self._wake.is_set()

    def enqueue(self, key: Key) -> None:
        self._queue[key] = None
        self._wake.set()

    def enqueue_after(self, key: Key, seconds: float) -> None:
        """Enqueue a key later, for decisions that change with time alone."""
        asyncio.get_running_loop().call_later(seconds, self.enqueue, key)

    def watch(self, informer: Informer[Any]) -> None:
        """Enqueue the key of every object that changes there."""
        informer.listen(lambda key, old, new: self.enqueue(key))

    async def run(self) -> None:
        """Runs until cancelled. May be called again later."""
        while True:
            await self._wake.wait()
            while self._queue:
                key = next(iter(self._queue))
                del self._queue[key]
                try:
                    await self._process(key)
                except asyncio.CancelledError:
                    self.enqueue(key)  # for the next run
                    raise
            self._wake.clear()

    async def _process(self, key: Key) -> None:
        try:
            await self._reconcile(key)
            self._failures.pop(key, None)
        except PlatformError as exc:
            self._retry(key)
            if not exc.retry:
                log.warning("reconcile failed", controller=self.name, key="/".join(key), error=str(exc))
        except Exception:  # one bad object must not stop the controller for the others
            log.exception("reconcile failed", controller=self.name, key="/".join(key))
            self._retry(key)

    def _retry(self, key: Key) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.enqueue_after(key, min(_FIRST_RETRY * 2**failures, _LAST_RETRY))
