"""A server over HTTP: the REST store driver, and the routes that are not about objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from aliquot.api import KINDS, Json, Project, Workload
from aliquot.client import streams
from aliquot.client.connection import Connection
from aliquot.labels import API_VERSION
from aliquot.store.driver import AnyKind, Document
from aliquot.store.drivers.rest import RestDriver
from aliquot.store.http.transport import Endpoint, Timeouts
from aliquot.streams import ExecStream, Log, LogOptions, PortStream, TerminalSize


class RemoteServer(RestDriver):
    async def whoami(self) -> Json:
        return await self._transport.read(f"/apis/{API_VERSION}/whoami")

    async def explain(self, namespace: str, workload: str, *, what_if: bool = False) -> Json:
        path = f"{self._object_path(KINDS.of(Workload), workload, namespace)}/explanation"
        return await self._transport.read(path, {"whatIf": "true"} if what_if else None)

    async def scenario(self) -> Json:
        return await self._transport.read(f"/apis/{API_VERSION}/scenario")

    async def kubeconfig(self, project: str, user: str, seconds: int) -> Json:
        path = f"{self._object_path(KINDS.of(Project), project, '')}/kubeconfig"
        return await self._transport.write("POST", path, {"user": user, "duration": seconds})

    async def dry_run_create(self, kind: AnyKind, document: Document) -> Json:
        path = self._list_path(kind, document.namespace)
        return await self._transport.write("POST", f"{path}?dryRun=All", document.data)

    def logs(self, namespace: str, pod: str, options: LogOptions) -> AbstractAsyncContextManager[Log]:
        return streams.open_log(self._transport, namespace, pod, options)

    def exec(
        self, namespace: str, pod: str, command: Sequence[str], *, tty: bool, stdin: bool, size: TerminalSize
    ) -> AbstractAsyncContextManager[ExecStream]:
        return streams.open_exec(self._transport, namespace, pod, command, tty=tty, stdin=stdin, size=size)

    def port(self, namespace: str, pod: str, port: int) -> AbstractAsyncContextManager[PortStream]:
        return streams.open_port(self._transport, namespace, pod, port)


def open_server(connection: Connection, retry_s: float) -> RemoteServer:
    async def token() -> str:
        return connection.token

    return RemoteServer(Endpoint(connection.url, token), timeouts=Timeouts(deadline=retry_s))
