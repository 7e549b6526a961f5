"""Launchers without the price of a Python start: one process has the launcher loaded, and forks for each pod.

It is told over a socket pair which orders to carry out (a path, and a socket for the answer), keeps nothing between
two of them, and ends when the platform does. Each launcher is a process of its own as before: it goes on when its
starter, or the platform, is killed. A starter that is gone is replaced by the next start; orders that it accepted and
did not carry out are lost, so whoever sent them must send them again (`LauncherGone`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from aliquot.api import Json

_ANSWER_BYTES = 1 << 18  # a sentence, at most with the longest word that a command may have


class LauncherFailed(Exception):
    """It ended without an answer, or gave none in time."""


class LauncherGone(LauncherFailed):
    """The launcher ended without an answer, or the forkserver ended before it forked the launcher.

    The caller may start the same launch again: the lock and the state file in the pod's folder prevent a second copy.
    """


class Forkserver:
    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._command = list(command)
        self._env = env
        self._pid = 0
        self._line = -1

    def open(self) -> None:
        """Start it now, so that the first pod does not wait for it."""
        if self._pid:
            return
        ours, theirs = _pair()
        with theirs:
            input_ = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            self._pid = os.posix_spawn(self._command[0], self._command, self._env, file_actions=input_, setsid=True)
        self._line = ours.detach()

    def close(self) -> None:
        """Launchers under way go on."""
        if self._pid:
            os.close(self._line)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid, self._line = 0, -1

    def __del__(self) -> None:
        self.close()

    async def start(self, orders: Path, seconds: float) -> Json:
        """What the launcher answers; `LauncherGone` when it ended without an answer, `LauncherFailed` when it takes
        too long."""
        ours, theirs = _pair()
        with ours:
            launcher = 0
            try:
                with theirs:
                    self._send(str(orders).encode(), theirs.fileno())
                ours.setblocking(False)
                async with asyncio.timeout(seconds):
                    launcher = int((await _message(ours))["launcher"])
                    return await _message(ours)
            except TimeoutError:
                if launcher:  # it has not closed its end, so the number is still its own
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(launcher, signal.SIGKILL)
                raise LauncherFailed from None
            except (OSError, ValueError) as exc:
                raise LauncherGone from exc

    def _send(self, orders: bytes, answer: int) -> None:
        """At most a few are under way, far from what would fill the line and make us wait.

        A successful send does not mean that the starter reads the message: between SIGKILL and its end the kernel still
        queues messages for it, and drops them with it. `start` then reads the end of the answer's socket.
        """
        self.open()
        try:
            _pass(self._line, orders, answer)
        except OSError:  # it was killed, by whom so ever
            self.close()
            self.open()
            _pass(self._line, orders, answer)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Messages, not a stream: each arrives whole and by itself."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _pass(line: int, orders: bytes, answer: int) -> None:
    with contextlib.closing(socket.socket(fileno=os.dup(line))) as opened:
        socket.send_fds(opened, [orders], [answer])


async def _message(source: socket.socket) -> Json:
    """The next one; `ValueError` when none comes any more."""
    answer: Json = json.loads(await asyncio.get_running_loop().sock_recv(source, _ANSWER_BYTES))
    return answer
