"""Following a log across broken connections, without a gap and without a byte twice.

The server says where in the whole log its answer begins. Counting from there gives the place to go on from after a
break, also in the middle of a line. Timestamps are not part of the log, so they are not counted.
"""

from __future__ import annotations

_LONGEST_STAMP = 64


class Place:
    """How far into a log its reader has come."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # Bytes from the log's beginning; None where the server does not say.
        self.offset: int | None = None
        self._in_line = False
        self._stamp = b""
        self._drop_stamp = False

    def begin(self, offset: int | None) -> None:
        """A stream begins at an offset of the log."""
        # Each stream puts a time before its first piece, even where that goes on with a line that was begun.
        self._drop_stamp = self._in_line and offset is not None and offset == self.offset
        self.offset, self._in_line, self._stamp = offset, self._in_line and not self._timestamps, b""

    def feed(self, piece: bytes) -> bytes:
        """What to show of a piece of the stream."""
        if not self._timestamps:
            self._count(piece)
            return piece
        out: list[bytes] = []
        while piece:
            if self._in_line:
                text, newline, piece = piece.partition(b"\n")
                self._count(text + newline)
                out.append(text + newline)
            else:
                piece = self._begin_line(piece, out)
        return b"".join(out)

    def _begin_line(self, piece: bytes, out: list[bytes]) -> bytes:
        """Take a line's timestamp; what is left of the piece."""
        stamp, space, rest = (self._stamp + piece).partition(b" ")
        if not space and len(stamp) <= _LONGEST_STAMP:
            self._stamp = stamp
            return b""
        if not self._drop_stamp:
            out.append(stamp + space)
        self._stamp, self._drop_stamp, self._in_line = b"", False, True
        return rest

    def _count(self, text: bytes) -> None:
        if text:
            self._in_line = not text.endswith(b"\n")
        if self.offset is not None:
            self.offset += len(text)
