"""Following a log across broken connections, without a gap and without a line twice.

The log is asked for with timestamps. After a break it is asked for again from a little before the last line that was
shown; what was shown already is known by its time, and by how many lines had that same time.
"""

from __future__ import annotations

from aliquot import units

OVERLAP_S = 2.0  # asked for again after a break: more than clocks and rounding can differ
_LONGEST_STAMP = 64


class Seam:
    """Joins streams of timestamped lines into one."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # The last line that was shown at all: its time, how many lines had that time, and how much of it was shown.
        self.last: float | None = None
        self._same = 0
        self._shown = 0
        self._whole = True
        # Where the present stream is.
        self._stamp = b""
        self._in_line = False
        self._hidden = False  # the present line was shown before
        self._skip = 0  # bytes of the present line that were shown before
        self._replayed = 0  # lines of this stream with the last time
        self._replaying = False

    def restart(self) -> None:
        """A new stream begins, which may repeat what was shown."""
        self._stamp, self._in_line, self._hidden, self._skip = b"", False, False, 0
        self._replayed, self._replaying = 0, self.last is not None

    def feed(self, piece: bytes) -> bytes:
        """What is new in a piece of the stream."""
        out: list[bytes] = []
        while piece:
            if self._in_line:
                text, newline, piece = piece.partition(b"\n")
                out.append(self._body(text + newline))
                self._in_line = not newline
            else:
                piece = self._begin(piece, out)
        return b"".join(out)

    def _begin(self, piece: bytes, out: list[bytes]) -> bytes:
        """Read a line's timestamp; what is left of the piece."""
        text = self._stamp + piece
        stamp, space, rest = text.partition(b" ")
        if not space and len(text) <= _LONGEST_STAMP and b"\n" not in text:
            self._stamp = text
            return b""
        self._stamp, self._in_line = b"", True
        moment = _moment(stamp)
        if moment is None:
            self._hidden, self._skip = False, 0
            return text  # no timestamp: shown as it is
        self._line_at(moment)
        if self._timestamps and not self._hidden and not self._skip:
            out.append(stamp + b" ")
        return rest

    def _line_at(self, moment: float) -> None:
        self._hidden, self._skip = False, 0
        if self._replaying and self.last is not None and moment <= self.last:
            self._replayed += moment == self.last
            if moment < self.last or self._replayed < self._same or (self._replayed == self._same and self._whole):
                self._hidden = True
                return
            if self._replayed == self._same:
                self._skip = self._shown
                self._whole = False
                return
        self._same = self._same + 1 if moment == self.last else 1
        self.last, self._shown, self._whole = moment, 0, False

    def _body(self, text: bytes) -> bytes:
        if self._hidden:
            return b""
        new = text[self._skip :]
        self._skip -= min(self._skip, len(text))
        self._shown += len(new)
        self._whole = text.endswith(b"\n")
        return new


def _moment(stamp: bytes) -> float | None:
    try:
        text = stamp.decode("ascii")
        return units.timestamp(text) if "T" in text else None
    except ValueError:
        return None
