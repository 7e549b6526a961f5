"""Logs, exec and port-forward for pods: the protocols that a back end offers and the server passes on.

The local agent implements them for its processes, the Kubernetes back end through the kubelet. Only these bytes do not
go through the store, because they are not state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aliquot.api import Pod

# Response headers: the offset at which the log begins, or else that each of its lines begins with its time.
LOG_OFFSET, LOG_STAMPED = "Aliquot-Log-Offset", "Aliquot-Log-Stamped"

# Exec and port-forward over a websocket use Kubernetes' protocol: the first byte of a message is its channel.
CHANNELS = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
DATA, ERROR = 0, 1  # channels of a port; CLOSE as above


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which part of a log, and whether to follow it."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None  # seconds since 1970
    timestamps: bool = False
    previous: bool = False  # of the container before the last restart
    limit_bytes: int | None = None
    # Bytes from the log's beginning: start exactly there. Wins over tail_lines and since.
    offset: int | None = None
    # A log without offsets begins each line with its time, so that its reader can resume after a broken connection.
    line_times: bool = False
    # Such a time, in seconds since 1970: resume there. Wins over tail_lines and since.
    resume: float | None = None
    # Only of the pod with this uid, not of a later one with the same name; empty: of any pod with the name.
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Log:
    """A log that is being read."""

    # In order; `Unavailable` when the connection to the log broke.
    chunks: AsyncIterator[bytes]
    # Bytes from the log's beginning at which `chunks` begin; None where logs have no offsets.
    offset: int | None = None
    # Whether each line begins with its time because of `line_times`.
    has_line_times: bool = False


class ExecStream(Protocol):
    """A command that runs inside a pod."""

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Its output as (1 or 2, bytes); with a terminal everything is 1. Ends when the command has ended."""

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def wait(self) -> int:
        """The exit status; 128 + n for signal n."""

    async def close(self) -> None:
        """Hang up, as a terminal does when its user leaves."""


class PortStream(Protocol):
    """A connection to a port of a pod."""

    def output(self) -> AsyncIterator[bytes]:
        """What the pod sends, until it closes its side; `Conflict` when nothing listens there."""

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None:
        """Close our side: nothing more will be written. The pod may go on sending."""

    async def close(self) -> None: ...


class Streams(Protocol):
    """What a back end offers."""

    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        """Open a pod's log. `Conflict` says why there is none (not started, image unknown)."""

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> ExecStream:
        """Start a command in the pod's main container. `Conflict` when the pod does not run."""

    async def connect(self, pod: Pod, port: int) -> PortStream:
        """Connect to a port of the pod. `Conflict` when the pod does not run, or (also later) nothing listens there."""


def why_not_running(pod: Pod) -> str:
    """Why a pod does not run, for messages: `it waits (ErrImagePull): no such image`."""
    status = pod.status
    if status.phase in ("Succeeded", "Failed"):
        return f"it has ended ({status.phase})"
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting and waiting.reason:
            return f"it waits ({waiting.reason})" + (f": {waiting.message}" if waiting.message else "")
    return "it has not started" if pod.spec.node_name else "it has not been placed on a node"
