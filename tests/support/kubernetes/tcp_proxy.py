"""A TCP proxy on loopback that resets, stalls and splits connections on request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Self

from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from aliquot.store.http.transport import Timeouts
from support.kubernetes.cluster import Cluster


class TcpProxy:
    """Forwards bytes to a port on loopback. Give its `port` to the client instead."""

    def __init__(self, target: int, *, piece: int = 65536) -> None:
        self._target = target
        # The most bytes that are sent to the client at a time.
        self._piece = piece
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropping_responses = False
        self.port = 0
        self.connections = 0
        self.connected = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        await asyncio.sleep(0)  # the event loop closes aborted sockets in its next iteration

    def cut(self) -> None:
        """Resets every connection; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Keeps connections open, but forwards nothing any more."""
        self._flowing.clear()

    def drop_responses(self) -> None:
        """Forwards requests; the client gets a reset instead of the responses."""
        self._dropping_responses = True

    async def refuse(self) -> None:
        """Refuses new connections until `accept`."""
        if self._server is not None:
            self._server.close()

    async def accept(self) -> None:
        await self.__aenter__()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected.set()
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, target_writer}
        for source, sink in ((reader, target_writer), (target_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink, to_client=sink is writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_client: bool) -> None:
        try:
            while data := await source.read(self._piece if to_client else 65536):
                await self._flowing.wait()
                if to_client and self._dropping_responses:
                    sink.transport.abort()
                    return
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # one side was reset: close the other
        finally:
            sink.close()


def driver_through(proxy: TcpProxy, cluster: Cluster, timeouts: Timeouts | None = None) -> KubernetesDriver:
    """A driver that reaches the cluster through the proxy."""
    direct = kubeconfig.load([cluster.kubeconfig])
    return KubernetesDriver(replace(direct, url=f"https://127.0.0.1:{proxy.port}"), timeouts=timeouts)
