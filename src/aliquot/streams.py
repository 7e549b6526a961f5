"""Looking inside a running pod: its log, and commands in it.

Who runs pods (the agent here, the kubelet on Kubernetes) offers this; the server passes it on. It is the one thing
that does not go through the store, because bytes of a terminal are nobody's state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aliquot.types import Pod

# The header of an answer that says where in the log it begins.
LOG_OFFSET = "Aliquot-Log-Offset"


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
    # Of the pod with this uid, and of no other that has its name now; empty: whoever has the name.
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80


class Session(Protocol):
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


class Streams(Protocol):
    def logs(self, pod: Pod, options: LogOptions) -> AsyncIterator[bytes]:
        """Pieces of the log, in order. `Conflict` says why there is none (not started, image unknown)."""

    def log_start(self, pod: Pod, options: LogOptions) -> int | None:
        """At which offset of the log `logs` will begin, so that a reader can go on after a break; None: not known.

        `Conflict` as for `logs`.
        """

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> Session:
        """Start a command in the pod's main container. `Conflict` when it does not run."""
