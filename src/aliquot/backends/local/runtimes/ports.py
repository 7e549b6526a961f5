"""Ports of pods, which share the machine's network: which process listens on a port, and a connection to it.

The kernel lists listening sockets by inode (`/proc/net/tcp`), and the sockets of a process in its `fd` folder.
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
_LISTEN_STATE = "0A"  # a socket's state in /proc/net/tcp
_CONNECT_SECONDS = 5.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # addresses that pods listen on


def listeners(port: int) -> dict[str, str]:
    """The sockets that listen on a port of this machine: inode, and the address to reach it at."""
    addresses = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:  # there may be no IPv6
            next(lines)
            for line in lines:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if fields[3] == _LISTEN_STATE and int(number, 16) == port:
                    addresses[fields[9]] = _address(address)
    return addresses


def _address(text: str) -> str:
    """Parse the kernel's form: 32-bit words, each in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"{'<' if sys.byteorder == 'little' else '>'}{len(words)}I", *words)
    address = str(ipaddress.ip_address(packed))
    return _LOOPBACK.get(address, address)


def sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets; none when it has ended or we may not read it."""
    inodes = set()
    with contextlib.suppress(OSError):
        for handle in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                target = os.readlink(f"/proc/{pid}/fd/{handle}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


async def connect_port(addresses: Sequence[str], port: int) -> PortConnection:
    """A connection to the first of the addresses that accepts one."""
    reason = ""
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return PortConnection(*await asyncio.open_connection(address, port))
        except OSError as exc:
            reason = os.strerror(exc.errno).lower() if exc.errno else "no answer in time"
    raise Conflict(f"cannot connect to port {port}: {reason}")


class PortConnection:
    """See aliquot.streams.PortStream."""

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
        with contextlib.suppress(OSError):  # the pod has closed its side; `output` reports that
            self._writer.write(data)
            await self._writer.drain()

    async def close_input(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
