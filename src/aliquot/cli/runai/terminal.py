"""Connects the user's terminal to a command that runs in a pod.

With a terminal on both sides, the local one is in raw mode: Ctrl-C and all other keys are sent as bytes, and the
terminal in the pod turns them into signals. The mode of the local terminal is restored however the program ends.
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

_CHUNK_SIZE = 1 << 16
_TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def is_terminal() -> bool:
    """Whether both stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def terminal_size() -> TerminalSize:
    """The size of the terminal itself; the variables COLUMNS and LINES do not change with it."""
    for stream in (sys.stdout, sys.stdin):
        with suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(stream.fileno())
            if columns and rows:
                return TerminalSize(rows, columns)
    return TerminalSize()


@contextmanager
def raw_mode(enabled: bool) -> Iterator[None]:
    if not enabled:
        yield
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    tty_modes.setraw(handle, termios.TCSADRAIN)  # keeps what the user has typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


async def attach(stream: ExecStream, *, tty: bool, stdin: bool) -> int:
    """Connect a command to this terminal until it ends, and return its exit status."""
    loop = asyncio.get_running_loop()
    this_task = asyncio.current_task()
    signals: list[int] = []

    def terminate(number: int) -> None:
        signals.append(number)
        if this_task is not None:
            this_task.cancel()

    tasks: set[asyncio.Task[None]] = set()

    def resize() -> None:
        tasks.add(asyncio.create_task(stream.resize(terminal_size())))

    with raw_mode(tty), _signal_handlers(loop, terminate, resize if tty else None):
        if stdin:
            tasks.add(asyncio.create_task(_send_input(stream, sys.stdin.buffer)))
        try:
            await _print_output(stream)
        except asyncio.CancelledError:
            if signals:
                raise SystemExit(128 + signals[0]) from None
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return await stream.wait()


@contextmanager
def _signal_handlers(
    loop: asyncio.AbstractEventLoop, terminate: Callable[[int], None], resize: Callable[[], None] | None
) -> Iterator[None]:
    numbers: list[signal.Signals] = []
    # Only the main thread can handle signals; tests run this in other threads.
    with suppress(RuntimeError, ValueError):
        for number in _TERMINATING_SIGNALS:
            loop.add_signal_handler(number, terminate, number)
            numbers.append(number)
        if resize is not None:
            loop.add_signal_handler(signal.SIGWINCH, resize)
            numbers.append(signal.SIGWINCH)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _print_output(stream: ExecStream) -> None:
    outputs = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    async for channel, data in stream.output():
        target = outputs[channel]
        target.write(data)
        target.flush()


async def _send_input(stream: ExecStream, source: BinaryIO) -> None:
    """Send what is typed, or the content of a file or pipe, as fast as the other side reads."""
    chunks = _read_in_thread(source)
    while data := await chunks.get():
        await stream.write(data)
    await stream.close_input()


def _read_in_thread(source: BinaryIO) -> asyncio.Queue[bytes]:
    """A queue that a thread fills: asyncio cannot wait for files, and a read from a terminal cannot be cancelled."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=16)

    def read() -> None:
        with suppress(RuntimeError, OSError, ValueError):  # the loop or the source is closed
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
        return source.read(_CHUNK_SIZE)  # it is not a file of the operating system
    return os.read(handle, _CHUNK_SIZE)
