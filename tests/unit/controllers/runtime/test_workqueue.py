"""The queue every loop has."""

from __future__ import annotations

import asyncio

from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Conflict
from aliquot.store.informer import Key
from support.stores.running import running, until


async def test_each_key_once() -> None:
    """A key that is touched many times before its turn is worked on once."""
    seen: list[Key] = []

    async def work(key: Key) -> None:
        seen.append(key)

    controller = Controller("test", work)
    for _ in range(5):
        controller.enqueue(("", "a"))
        controller.enqueue(("", "b"))
    async with running(controller.run()):
        await until(lambda: _is(len(seen) == 2))
    assert seen == [("", "a"), ("", "b")]


async def test_failure_comes_back() -> None:
    """A key that failed is tried again, others are not held up."""
    seen: list[str] = []

    async def work(key: Key) -> None:
        seen.append(key[1])
        if key[1] == "bad" and seen.count("bad") < 3:
            raise Conflict("somebody was faster")

    controller = Controller("test", work)
    controller.enqueue(("", "bad"))
    controller.enqueue(("", "good"))
    async with running(controller.run()):
        await until(lambda: _is(seen.count("bad") == 3))
    assert seen[:2] == ["bad", "good"]


async def test_stopped_in_the_middle() -> None:
    """A key that was being worked on when the loop was stopped is taken up by its next run."""
    begun = asyncio.Event()
    done: list[Key] = []

    async def work(key: Key) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        done.append(key)

    controller = Controller("test", work)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await begun.wait()
    async with running(controller.run()):
        await until(lambda: _is(done == [("", "a")]))


async def test_bug_does_not_stop_the_loop() -> None:
    """An error of our own costs its key a retry, not the loop its life."""
    seen: list[str] = []

    async def work(key: Key) -> None:
        seen.append(key[1])
        if len(seen) == 1:
            raise ZeroDivisionError

    controller = Controller("test", work)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await until(lambda: _is(len(seen) == 2))


async def test_touched_while_working() -> None:
    """What changes while it is worked on is looked at again."""
    seen: list[str] = []
    started, go = asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> None:
        seen.append(key[1])
        started.set()
        await go.wait()

    controller = Controller("test", work)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await started.wait()
        controller.enqueue(("", "a"))
        go.set()
        await until(lambda: _is(len(seen) == 2))


async def _is(condition: bool) -> bool:
    return condition
