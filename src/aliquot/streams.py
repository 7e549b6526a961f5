"""Looking inside a running pod: its log, commands in it, and its ports.

Who runs pods (the agent here, the kubelet on Kubernetes) offers this; the server passes it on. It is the one thing
that does not go through the store, because bytes of a terminal are nobody's state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aliquot.api import Pod

# Headers of an answer: where in the log it begins, or else that each of its lines begins with its time.
LOG_OFFSET, LOG_STAMPED = "Aliquot-Log-Offset", "Aliquot-Log-Stamped"

# How commands and ports go over a websocket: Kubernetes' protocol. The first byte of a message says what the rest is.
CHANNELS = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
DATA, ERROR = 0, 1  # of a port; CLOSE as above


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a log, and whether to go on when it ends."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None  # seconds since 1970
    timestamps: bool = False
    previous: bool = False  # of the container before the last restart
    limit_bytes: int | None = None
    # Bytes from the log's beginning: go on from exactly there. Wins over tail_lines and since.
    offset: int | None = None
    # A log that has no offsets shall begin each line with its time, so that its reader can go on after a break.
    line_times: bool = False
    # Such a time, in seconds since 1970: go on from there. Wins over tail_lines and since.
    resume: float | None = None
    # Of the pod with this uid, and of no other that has its name now; empty: whoever has the name.
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Log:
    """A log that is being read."""

    # In order; `Unavailable` when whoever has the log broke off.
    pieces: AsyncIterator[bytes]
    # Bytes from the log's beginning at which this begins; None where logs have no offsets.
    offset: int | None = None
    # Whether each line begins with its time because of `line_times`.
    stamped: bool = False


class ExecStream(Protocol):
    """A command that runs inside a pod."""

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """What it writes, as (1 or 2, bytes); with a terminal everything is 1. Ends when the command has ended."""

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def wait(self) -> int:
        """The exit status; 128 + n for signal n."""

    async def close(self) -> None:
        """The reader is gone: hang up, as a terminal does."""


class PortStream(Protocol):
    """A connection to a port of a pod."""

    def output(self) -> AsyncIterator[bytes]:
        """What the pod sends, until it closes its side; `Conflict` when nobody listens there."""

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None:
        """Nothing more will be written. What the pod sends goes on."""

    async def close(self) -> None: ...


class Streams(Protocol):
    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        """A pod's log. `Conflict` says why there is none (not started, image unknown)."""

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> ExecStream:
        """Start a command in the pod's main container. `Conflict` when it does not run."""

    async def connect(self, pod: Pod, port: int) -> PortStream:
        """Open a port of the pod. `Conflict` when it does not run, or (here or at the first read) nobody listens."""


def why_not_running(pod: Pod) -> str:
    """Why nothing can be seen of a pod that does not run: `it waits (ErrImagePull): no such image`."""
    status = pod.status
    if status.phase in ("Succeeded", "Failed"):
        return f"it has ended ({status.phase})"
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting and waiting.reason:
            return f"it waits ({waiting.reason})" + (f": {waiting.message}" if waiting.message else "")
    return "it has not started" if pod.spec.node_name else "it has not been placed on a node"
