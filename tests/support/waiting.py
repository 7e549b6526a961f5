"""Waiting for what another thread, process or controller does.

    wait_until   blocks; for tests without an event loop
    eventually   for tests inside an event loop

Both poll, because most conditions have no event. The limits are generous: tests share busy machines.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60.0


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """Returns the condition's first value that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.02)
    return value


async def eventually(condition: Callable[[], object], what: str = "", seconds: float = SECONDS) -> None:
    """Returns when the condition is true. The condition may be a function or a coroutine function."""
    try:
        async with asyncio.timeout(seconds):
            while not await _value(condition):  # noqa: ASYNC110  # a condition has no event
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"timed out waiting for {what or condition}") from None


async def _value(condition: Callable[[], object]) -> object:
    value = condition()
    return await value if inspect.isawaitable(value) else value
