"""One connection to a port of a pod, through the API server and the kubelet.

Kubernetes forwards ports in SPDY frames. The API server accepts them over a websocket, which is how kubectl sends them
(`SPDY/3.1+portforward.k8s.io`). The older framing without SPDY, `v4.channel.k8s.io`, cannot close one direction alone,
so a connection whose peer has left would stay open. The container runtime decides what a half-closed connection does:
containerd does not pass it on, and closes the whole connection a second later.

This module implements the part of SPDY that the other side uses. It opens two streams, one for errors and one for data.
It reads no header blocks, so it does not need the protocol's dictionary. Neither side uses flow-control windows.

    control frame   1 | version (15)   type (16)   flags (8)   length (24)   ...
    data frame      0 | stream (31)                flags (8)   length (24)   bytes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncGenerator
from typing import NamedTuple

from aliquot.errors import Conflict, Unavailable
from aliquot.store.http.client import Socket
from aliquot.store.http.errors import one_line

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_VERSION = 3
_SYN_STREAM, _RST_STREAM, _PING = 1, 3, 6
_FIN = 1
_ERROR_STREAM, _DATA_STREAM = 1, 3  # clients use odd numbers
_CHUNK = 1 << 16
_HEADER = struct.Struct(">II")


class Frame(NamedTuple):
    type: int  # of a control frame; 0 for a data frame
    stream: int  # of a data frame, or of a control frame that concerns a stream
    flags: int
    data: bytes


class PortPipe:
    """Implements `aliquot.streams.Pipe`."""

    def __init__(self, socket: Socket, pod: str, port: int) -> None:
        self._socket = socket
        self._pod = pod
        self._port = port
        self._headers = zlib.compressobj()

    async def open(self) -> None:
        """Requests the port. Whether a program listens on it shows at the first read."""
        error = self._stream(_ERROR_STREAM, "error", _FIN)  # this side never writes to it
        await self._socket.send(error + self._stream(_DATA_STREAM, "data", 0))

    def _stream(self, number: int, kind: str, flags: int) -> bytes:
        pairs = [("port", str(self._port)), ("requestid", "0"), ("streamtype", kind)]
        block = struct.pack(">I", len(pairs)) + b"".join(_text(text) for pair in pairs for text in pair)
        packed = self._headers.compress(block) + self._headers.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_STREAM, struct.pack(">IIH", number, 0, 0) + packed, flags)

    async def output(self) -> AsyncGenerator[bytes, None]:
        error, rest, open_streams = b"", b"", {_ERROR_STREAM, _DATA_STREAM}
        while open_streams:  # the error may arrive after the end of the data
            message = await self._socket.receive()
            if message is None:
                raise Unavailable("the connection to the pod broke")
            frames, rest = split(rest + message)
            for frame in frames:
                if frame.type == _PING:
                    await self._socket.send(_control(_PING, frame.data, 0))
                elif frame.type == _RST_STREAM:
                    raise Unavailable("the connection to the pod broke: its stream was reset")
                elif frame.type:
                    continue  # SYN_REPLY, SETTINGS, GOAWAY
                elif frame.stream == _ERROR_STREAM:
                    error += frame.data
                elif frame.data:
                    yield frame.data
                if frame.flags & _FIN:
                    open_streams.discard(frame.stream)
        if error:
            raise self._refused(error)

    def _refused(self, error: bytes) -> Conflict:
        """The runtime's text is long; the usual cause is that no program listens on the port."""
        if b"connection refused" in error.lower():
            return Conflict(f"nothing in pod {self._pod} listens on port {self._port}")
        return Conflict(f"port {self._port} of pod {self._pod}: {one_line(error.decode(errors='replace'))}")

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            await self._send(_data(data[start : start + _CHUNK], 0))

    async def close_input(self) -> None:
        await self._send(_data(b"", _FIN))

    async def _send(self, frame: bytes) -> None:
        if not self._socket.closed:  # if it is, reading from it reports why
            await self._socket.send(frame)

    async def close(self) -> None:
        await self._socket.close()


def split(received: bytes) -> tuple[list[Frame], bytes]:
    """The complete frames, and the bytes that remain: a websocket message may end in the middle of a frame."""
    frames, start = [], 0
    while len(received) - start >= _HEADER.size:
        first, second = _HEADER.unpack_from(received, start)
        end = start + _HEADER.size + (second & 0xFFFFFF)
        if end > len(received):
            break
        data = received[start + _HEADER.size : end]
        if first >> 31:
            stream = struct.unpack_from(">I", data)[0] & 0x7FFFFFFF if len(data) >= 4 else 0
            frames.append(Frame(first & 0xFFFF, stream, second >> 24, data))
        else:
            frames.append(Frame(0, first, second >> 24, data))
        start = end
    return frames, received[start:]


def _control(kind: int, data: bytes, flags: int) -> bytes:
    return _HEADER.pack(1 << 31 | _VERSION << 16 | kind, flags << 24 | len(data)) + data


def _data(data: bytes, flags: int) -> bytes:
    return _HEADER.pack(_DATA_STREAM, flags << 24 | len(data)) + data


def _text(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()
