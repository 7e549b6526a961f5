"""Ports of pods that share the machine's network: who listens where, and a connection to it.

The kernel says which sockets listen (`/proc/net/tcp`, by inode) and which sockets a process holds (its `fd` folder).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import struct
import sys
from collections.abc import AsyncIterator, Sequence

from aliquot.errors import Conflict

_CHUNK = 1 << 16
_LISTENS = "0A"  # a socket's state, as the kernel writes it
_CONNECT_SECONDS = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what others listen on


def listeners(port: int) -> dict[str, str]:
    """The inode of each socket that listens on a port of this machine, and the address to reach it at."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:  # without IPv6 there is one
            next(lines)
            for line in lines:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTENS and int(number, 16) == port:
                    found[fields[9]] = _address(address)
    return found


def _address(text: str) -> str:
    """From the kernel's form: words of 32 bits, each in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    address = str(ipaddress.ip_address(packed))
    return _EVERYWHERE.get(address, address)


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process holds; none when it is gone or not ours to look at."""
    found = set()
    with contextlib.suppress(OSError):
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


async def connect_port(addresses: Sequence[str], port: int) -> PortConnection:
    """A connection to the first of the addresses that takes one."""
    why = ""
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return PortConnection(*await asyncio.open_connection(address, port))
        except OSError as exc:
            why = os.strerror(exc.errno).lower() if exc.errno else "no answer in time"
    raise Conflict(f"cannot connect to port {port}: {why}")


class PortConnection:
    """See aliquot.streams.Pipe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def output(self) -> AsyncIterator[bytes]:
        try:
            while data := await self._reader.read(_CHUNK):
                yield data
        except OSError as exc:
            raise Conflict("the pod broke the connection off") from exc

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it takes no more; its end tells the rest
            self._writer.write(data)
            await self._writer.drain()

    async def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
