"""Launchers without the cost of a Python start: one process has the launcher loaded, and forks it for each pod.

It receives requests over a socket pair (the path of a launch spec, and a socket for the answer), keeps no state
between requests, and ends with the platform. Each launcher is a process of its own: it goes on when the forkserver or
the platform is killed. A forkserver that has ended is replaced at the next start. Requests that it accepted and did
not carry out are lost, so the caller must send them again (`LauncherGone`).
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

_ANSWER_BYTES = 1 << 18  # a sentence that may quote the longest argument of a command


class LauncherFailed(Exception):
    """The launcher ended without an answer, or did not answer in time."""


class LauncherGone(LauncherFailed):
    """The launcher ended without an answer, or the forkserver ended before it forked the launcher.

    The caller may start the same launch again: the lock and the state file in the pod's folder prevent a second copy.
    """


class Forkserver:
    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._command = list(command)
        self._env = env
        self._pid = 0
        self._socket = -1

    def open(self) -> None:
        """Start the forkserver now, so that the first pod does not wait for it."""
        if self._pid:
            return
        ours, theirs = _pair()
        with theirs:
            input_ = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            self._pid = os.posix_spawn(self._command[0], self._command, self._env, file_actions=input_, setsid=True)
        self._socket = ours.detach()

    def close(self) -> None:
        """End the forkserver; launchers that it has forked go on."""
        if self._pid:
            os.close(self._socket)
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid, self._socket = 0, -1

    def __del__(self) -> None:
        self.close()

    async def start(self, spec_file: Path, seconds: float) -> Json:
        """The launcher's answer; `LauncherGone` when it ended without one, `LauncherFailed` when it takes too long."""
        ours, theirs = _pair()
        with ours:
            launcher = 0
            try:
                with theirs:
                    self._send(str(spec_file).encode(), theirs.fileno())
                ours.setblocking(False)
                async with asyncio.timeout(seconds):
                    launcher = int((await _message(ours))["launcher"])
                    return await _message(ours)
            except TimeoutError:
                if launcher:  # it has not closed its end, so the pid is still its own
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(launcher, signal.SIGKILL)
                raise LauncherFailed from None
            except (OSError, ValueError) as exc:
                raise LauncherGone from exc

    def _send(self, spec_file: bytes, answer: int) -> None:
        """Only a few requests are under way at a time, far too few to fill the socket and block.

        A successful send does not mean that the forkserver reads the request: between SIGKILL and its end the kernel
        still queues messages for it, and drops them with it. `start` then reads the end of the answer's socket.
        """
        self.open()
        try:
            _send_request(self._socket, spec_file, answer)
        except OSError:  # the forkserver was killed
            self.close()
            self.open()
            _send_request(self._socket, spec_file, answer)


def _pair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets for messages, not a stream: each message arrives whole and by itself."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _send_request(handle: int, spec_file: bytes, answer: int) -> None:
    with contextlib.closing(socket.socket(fileno=os.dup(handle))) as opened:
        socket.send_fds(opened, [spec_file], [answer])


async def _message(source: socket.socket) -> Json:
    """The next message; `ValueError` when the other end is closed."""
    message: Json = json.loads(await asyncio.get_running_loop().sock_recv(source, _ANSWER_BYTES))
    return message
