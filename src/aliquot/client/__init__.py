"""The client library: finds a server and calls it. Used by the command line and by users' programs.

    from aliquot.client import connect
    from aliquot.client.connection import Connection

    async with connect(Connection("http://127.0.0.1:7520", token)) as server:
        listing = await server.list(KINDS.of(Project))

connection.py finds the server, settings.py holds the user's settings, remote.py and streams.py make the calls, and
log_following.py resumes a log after a broken connection. Commands and their output belong in cli/.

`connect` opens a `StoreDriver`, so code that works with a store also works with a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from aliquot.api import Json
from aliquot.client.connection import Connection
from aliquot.store.driver import AnyKind, Document, StoreDriver
from aliquot.streams import ExecStream, Log, LogOptions, PortStream, TerminalSize

# How long reads are retried: long enough for a server restart, and about as long as a person waits for an answer.
RETRY_S = 3.0


class Server(StoreDriver, Protocol):
    """A store driver with the server's other routes: identity, explanations, and logs, exec and ports of pods."""

    async def whoami(self) -> Json:
        """{"user", "subject", "roles"}"""

    async def explain(self, namespace: str, workload: str, *, what_if: bool = False) -> Json:
        """The state of a workload, the reasons, and with `what_if` what would let it run now."""

    async def scenario(self) -> Json:
        """The input of the last scheduling cycle, as a scenario for `simulate`."""

    async def kubeconfig(self, project: str, user: str, seconds: int) -> Json:
        """{"namespace", "expires", "kubeconfig"}: kubectl access for a user to a project."""

    async def dry_run_create(self, kind: AnyKind, document: Document) -> Json:
        """What `create` would store; nothing is stored."""

    def logs(self, namespace: str, pod: str, options: LogOptions) -> AbstractAsyncContextManager[Log]:
        """Opens a pod's log while the block runs; `Conflict` when there is none yet."""

    def exec(
        self, namespace: str, pod: str, command: Sequence[str], *, tty: bool, stdin: bool, size: TerminalSize
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Runs a command in a pod while the block runs."""

    def port(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PortStream]:
        """Connects to a port of a pod while the block runs."""


@asynccontextmanager
async def connect(connection: Connection, *, retry_s: float = RETRY_S) -> AsyncIterator[Server]:
    """Opens a connection to the server while the block runs."""
    # Imported late: the HTTP client takes a tenth of a second to import, and finding a server does not need it.
    from aliquot.client.remote import open_server

    async with open_server(connection, retry_s) as server:
        yield server
