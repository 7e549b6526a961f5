"""One connection to a port of a pod, through the API server and the kubelet.

Kubernetes forwards ports in SPDY frames, and the API server takes those over a websocket, as kubectl sends them
(`SPDY/3.1+portforward.k8s.io`). There is also an older framing without SPDY, `v4.channel.k8s.io`; it cannot say that
one direction has ended, so a connection whose other end has left would stay. What becomes of that word is the container
runtime's matter: containerd does not pass it on, and ends the whole connection a second later.

Of SPDY only what the other side uses is here: we open two streams, one for errors and one for data, and never read
header blocks, so the protocol's dictionary is not needed. There are no flow-control windows on either side.

    control frame   1 | version (15)   type (16)   flags (8)   length (24)   ...
    data frame      0 | stream (31)                flags (8)   length (24)   bytes
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncGenerator
from typing import NamedTuple

from aliquot.errors import Conflict, Unavailable
from aliquot.store.http.connections import Socket
from aliquot.store.http.errors import one_line

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_VERSION = 3
_SYN_STREAM, _RST_STREAM, _PING = 1, 3, 6
_FIN = 1
_ERROR_STREAM, _DATA_STREAM = 1, 3  # clients have the odd numbers
_CHUNK = 1 << 16
_HEADER = struct.Struct(">II")


class Frame(NamedTuple):
    type: int  # of a control frame; 0 for data
    stream: int  # of a data frame, and of those control frames that are about one
    flags: int
    data: bytes


class PortPipe:
    """See aliquot.streams.Pipe."""

    def __init__(self, socket: Socket, pod: str, port: int) -> None:
        self._socket = socket
        self._pod = pod
        self._port = port
        self._headers = zlib.compressobj()

    async def open(self) -> None:
        """Ask for the port. Whether somebody listens there shows at the first read."""
        error = self._stream(_ERROR_STREAM, "error", _FIN)  # nothing of ours to say there
        await self._socket.send(error + self._stream(_DATA_STREAM, "data", 0))

    def _stream(self, number: int, kind: str, flags: int) -> bytes:
        pairs = [("port", str(self._port)), ("requestid", "0"), ("streamtype", kind)]
        block = struct.pack(">I", len(pairs)) + b"".join(_text(word) for pair in pairs for word in pair)
        packed = self._headers.compress(block) + self._headers.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_STREAM, struct.pack(">IIH", number, 0, 0) + packed, flags)

    async def output(self) -> AsyncGenerator[bytes, None]:
        trouble, rest, open_streams = b"", b"", {_ERROR_STREAM, _DATA_STREAM}
        while open_streams:  # the error's text may come after the end of the data
            message = await self._socket.receive()
            if message is None:
                raise Unavailable("the connection to the pod broke")
            frames, rest = split(rest + message)
            for frame in frames:
                if frame.type == _PING:
                    await self._socket.send(_control(_PING, frame.data, 0))
                elif frame.type == _RST_STREAM:
                    raise Unavailable("the connection was broken off on the way to the pod")
                elif frame.type:
                    continue  # replies to our own streams, settings, a goodbye
                elif frame.stream == _ERROR_STREAM:
                    trouble += frame.data
                elif frame.data:
                    yield frame.data
                if frame.flags & _FIN:
                    open_streams.discard(frame.stream)
        if trouble:
            raise self._refused(trouble)

    def _refused(self, told: bytes) -> Conflict:
        """The error's text is a runtime's story of what it tried; nearly always nobody listens."""
        if b"connection refused" in told.lower():
            return Conflict(f"nothing in pod {self._pod} listens on port {self._port}")
        return Conflict(f"port {self._port} of pod {self._pod}: {one_line(told.decode(errors='replace'))}")

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), _CHUNK):
            await self._send(_data(data[at : at + _CHUNK], 0))

    async def close_input(self) -> None:
        await self._send(_data(b"", _FIN))

    async def _send(self, frame: bytes) -> None:
        if not self._socket.closed:  # else it takes no more; its end tells the rest
            await self._socket.send(frame)

    async def close(self) -> None:
        await self._socket.close()


def split(received: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames in what came, and the rest: frames and messages of the websocket have different ends."""
    frames, at = [], 0
    while len(received) - at >= _HEADER.size:
        first, second = _HEADER.unpack_from(received, at)
        end = at + _HEADER.size + (second & 0xFFFFFF)
        if end > len(received):
            break
        data = received[at + _HEADER.size : end]
        if first >> 31:
            about = struct.unpack_from(">I", data)[0] & 0x7FFFFFFF if len(data) >= 4 else 0
            frames.append(Frame(first & 0xFFFF, about, second >> 24, data))
        else:
            frames.append(Frame(0, first, second >> 24, data))
        at = end
    return frames, received[at:]


def _control(kind: int, data: bytes, flags: int) -> bytes:
    return _HEADER.pack(1 << 31 | _VERSION << 16 | kind, flags << 24 | len(data)) + data


def _data(data: bytes, flags: int) -> bytes:
    return _HEADER.pack(_DATA_STREAM, flags << 24 | len(data)) + data


def _text(word: str) -> bytes:
    return struct.pack(">I", len(word)) + word.encode()
