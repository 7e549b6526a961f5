"""The client: finds the server of this machine and talks to it. Used by the command line and by users' programs.

    from aliquot.client import connect
    from aliquot.client.connection import Connection

    async with connect(Connection("http://127.0.0.1:7520", token)) as server:
        listing = await server.list(KINDS.of(Project))

What `connect` opens is one more body of the store, so whatever runs against a store also runs against a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from aliquot.api import Json
from aliquot.client.connection import Connection
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.streams import ExecStream, Log, LogOptions, PortStream, TerminalSize

# How long reads are tried again. A restarting server is back within it, and people wait no longer for an answer.
PATIENCE_S = 3.0


class Server(StoreDriver, Protocol):
    """A body of the store that also knows who is asking, and looks inside pods."""

    async def whoami(self) -> Json:
        """{"user", "subject", "roles"}"""

    async def explain(self, namespace: str, workload: str, *, what_if: bool = False) -> Json:
        """How a workload stands, why, and (`what_if`) what would let it run now."""

    async def scenario(self) -> Json:
        """What the scheduler looked at last, as `simulate` reads it."""

    async def kubeconfig(self, project: str, user: str, seconds: int) -> Json:
        """{"namespace", "expires", "kubeconfig"}: what a user may do in a project, with kubectl."""

    async def rehearse(self, kind: AnyKind, document: Document) -> Json:
        """What `create` would store; nothing is stored."""

    def logs(self, namespace: str, pod: str, options: LogOptions) -> AbstractAsyncContextManager[Log]:
        """A pod's log, for as long as the block lasts; `Conflict` when there is none yet."""

    def exec(
        self, namespace: str, pod: str, command: Sequence[str], *, tty: bool, stdin: bool, size: TerminalSize
    ) -> AbstractAsyncContextManager[ExecStream]:
        """A command in a pod, for as long as the block lasts."""

    def port(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PortStream]:
        """A connection to a port of a pod, for as long as the block lasts."""


@asynccontextmanager
async def connect(connection: Connection, *, patience_s: float = PATIENCE_S) -> AsyncIterator[Server]:
    """The server's objects, for as long as the block lasts."""
    # Imported late: the HTTP client costs a tenth of a second, and finding a server needs none.
    from aliquot.client.remote import open_server

    async with open_server(connection, patience_s) as server:
        yield server
