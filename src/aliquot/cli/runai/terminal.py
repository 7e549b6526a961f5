"""The user's own terminal while a command runs in a pod: keys go there as they are, its output comes here.

With a terminal on both sides ours is in raw mode: Ctrl-C and all other keys are bytes for the command, which has a
terminal of its own to make signals of them. Whatever ends us, the terminal is put back as it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
import tty as tty_modes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from aliquot.streams import ExecStream, TerminalSize

_PIECE = 1 << 16
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def is_terminal() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def terminal_size() -> TerminalSize:
    """Of the terminal itself: COLUMNS and LINES do not follow when it changes."""
    for stream in (sys.stdout, sys.stdin):
        with suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(stream.fileno())
            if columns and rows:
                return TerminalSize(rows, columns)
    return TerminalSize()


@contextmanager
def raw_mode(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    tty_modes.setraw(handle, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


async def attach(session: ExecStream, *, tty: bool, stdin: bool) -> int:
    """Connect a command to this terminal until it ends; its exit status."""
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        if me is not None:
            me.cancel()

    tasks: set[asyncio.Task[None]] = set()

    def resize() -> None:
        tasks.add(asyncio.create_task(session.resize(terminal_size())))

    with raw_mode(tty), _signals(loop, end, resize if tty else None):
        if stdin:
            tasks.add(asyncio.create_task(_type(session, sys.stdin.buffer)))
        try:
            await _print(session)
        except asyncio.CancelledError:
            if ended_by:
                raise SystemExit(128 + ended_by[0]) from None
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return await session.wait()


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, end: Callable[[int], None], resize: Callable[[], None] | None
) -> Iterator[None]:
    numbers: list[signal.Signals] = []
    # Only the main thread has signals; elsewhere (in tests) nobody presses keys.
    with suppress(RuntimeError, ValueError):
        for number in _ENDING:
            loop.add_signal_handler(number, end, number)
            numbers.append(number)
        if resize is not None:
            loop.add_signal_handler(signal.SIGWINCH, resize)
            numbers.append(signal.SIGWINCH)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _print(session: ExecStream) -> None:
    outputs = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    async for channel, data in session.output():
        stream = outputs[channel]
        stream.write(data)
        stream.flush()


async def _type(session: ExecStream, source: BinaryIO) -> None:
    """Pass on what is typed, or what a file or pipe holds, at the speed that the other side takes."""
    pieces = _pieces(source)
    while data := await pieces.get():
        await session.write(data)
    await session.close_input()


def _pieces(source: BinaryIO) -> asyncio.Queue[bytes]:
    """A queue that fills from a thread: files cannot be waited for, and a read of a terminal cannot be cut short."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)

    def read() -> None:
        with suppress(RuntimeError, OSError, ValueError):  # the loop, or the source, is closed: nobody listens
            while True:
                data = _read(source)
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return queue


def _read(source: BinaryIO) -> bytes:
    try:
        handle = source.fileno()
    except (OSError, ValueError):
        return source.read(_PIECE)  # no file behind it
    return os.read(handle, _PIECE)
