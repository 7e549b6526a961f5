"""The workqueue of a controller."""

from __future__ import annotations

import asyncio

from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Conflict
from aliquot.store.informer import Key
from support.stores.running import running
from support.waiting import eventually


async def test_each_key_once() -> None:
    """A key that is enqueued several times is reconciled once."""
    seen: list[Key] = []

    async def reconcile(key: Key) -> None:
        seen.append(key)

    controller = Controller("test", reconcile)
    for _ in range(5):
        controller.enqueue(("", "a"))
        controller.enqueue(("", "b"))
    async with running(controller.run()):
        await eventually(lambda: _is(len(seen) == 2))
    assert seen == [("", "a"), ("", "b")]


async def test_failed_keys_are_retried() -> None:
    """A key that failed is retried; other keys do not wait for it."""
    seen: list[str] = []

    async def reconcile(key: Key) -> None:
        seen.append(key[1])
        if key[1] == "bad" and seen.count("bad") < 3:
            raise Conflict("the object has changed")

    controller = Controller("test", reconcile)
    controller.enqueue(("", "bad"))
    controller.enqueue(("", "good"))
    async with running(controller.run()):
        await eventually(lambda: _is(seen.count("bad") == 3))
    assert seen[:2] == ["bad", "good"]


async def test_cancelled_while_reconciling() -> None:
    """A key that was being reconciled when the controller was cancelled is reconciled by its next run."""
    begun = asyncio.Event()
    done: list[Key] = []

    async def reconcile(key: Key) -> None:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        done.append(key)

    controller = Controller("test", reconcile)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await begun.wait()
    async with running(controller.run()):
        await eventually(lambda: _is(done == [("", "a")]))


async def test_a_bug_does_not_stop_the_controller() -> None:
    """A key whose reconcile raises an unexpected exception is retried, and the controller goes on."""
    seen: list[str] = []

    async def reconcile(key: Key) -> None:
        seen.append(key[1])
        if len(seen) == 1:
            raise ZeroDivisionError

    controller = Controller("test", reconcile)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await eventually(lambda: _is(len(seen) == 2))


async def test_enqueued_while_reconciling() -> None:
    """A key that is enqueued while it is being reconciled is reconciled again."""
    seen: list[str] = []
    started, go = asyncio.Event(), asyncio.Event()

    async def reconcile(key: Key) -> None:
        seen.append(key[1])
        started.set()
        await go.wait()

    controller = Controller("test", reconcile)
    controller.enqueue(("", "a"))
    async with running(controller.run()):
        await started.wait()
        controller.enqueue(("", "a"))
        go.set()
        await eventually(lambda: _is(len(seen) == 2))


async def _is(condition: bool) -> bool:
    return condition
