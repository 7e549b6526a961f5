"""A TCP load balancer: each connection goes to the next server that accepts it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self


class LoadBalancer:
    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = dict.fromkeys(ports, 0)  # accepted by each server
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._thread, *self._threads):
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._next()
            if server is None:
                client.close()
                continue
            thread = threading.Thread(target=_join, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _next(self) -> socket.socket | None:
        for _ in self._ports:
            self._ports.append(port := self._ports.pop(0))
            with suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port))
                self.connections[port] += 1
                return server
        return None


def _join(client: socket.socket, server: socket.socket) -> None:
    """Copies bytes in both directions until both sides have closed."""
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
