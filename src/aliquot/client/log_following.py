"""Following a log across broken connections, without a gap and without a byte twice.

A log with offsets says where in the whole log its answer begins. Counting from there gives the place to go on from
after a break, also in the middle of a line. Timestamps are not part of the log, so they are not counted.

A log without offsets, as the kubelet has it, begins each line with its time instead, and can be asked for all lines
from a second on. What was shown of the last seconds is remembered, and left out when it comes again. Lines are told
apart by their time, to the nanosecond; of several lines with one time, as many are left out as were shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from aliquot.streams import Log, LogOptions
from aliquot.units import timestamp

_LONGEST_STAMP = 64
_SECOND = len("2026-01-31T12:00:00")  # of a time, as text
# Lines of two streams are written in nearly the order of their times: so much before the newest is asked for again.
_SLACK_S = 1


def cursor_for(log: Log, *, timestamps: bool) -> OffsetCursor | TimestampCursor:
    """What remembers how far the reader of such a log has come."""
    return TimestampCursor(timestamps=timestamps) if log.has_line_times else OffsetCursor(timestamps=timestamps)


class OffsetCursor:
    """How far into a log with offsets its reader has come."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # Bytes from the log's beginning; None where the server does not say.
        self.offset: int | None = None
        self._in_line = False
        self._stamp = b""
        self._drop_stamp = False

    @property
    def known(self) -> bool:
        return self.offset is not None

    def again(self, options: LogOptions, *, follow: bool) -> LogOptions:
        """How to ask for what comes next."""
        return dataclasses.replace(options, follow=follow, offset=self.offset, tail_lines=None, since=None)

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


class TimestampCursor:
    """How far into a log without offsets its reader has come."""

    known = True

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # Times, as text, of the first and the newest line that were shown: the same number of digits, so they compare.
        self._first = self._newest = ""
        # Of the last two seconds: how many lines of each time were shown whole.
        self._seen: dict[str, Counter[str]] = {}
        # Those of them that may come again in this stream.
        self._again: Counter[str] = Counter()
        # The line at which the last stream broke off, and how much of it was shown.
        self._cut = ("", 0)
        # The beginning of a time, whose rest has not come yet.
        self._head = b""
        # The line that is coming, None between two; how much of it was shown, None when it is left out.
        self._line: str | None = None
        self._shown: int | None = None
        self._skip = 0

    def again(self, options: LogOptions, *, follow: bool) -> LogOptions:
        """How to ask for what comes next, and for a little of what has come."""
        if not self._newest:
            return dataclasses.replace(options, follow=follow, line_times=True)
        since = float(math.floor(timestamp(self._newest)) - _SLACK_S)
        return dataclasses.replace(options, follow=follow, line_times=True, resume=since, tail_lines=None, since=None)

    def begin(self, offset: int | None) -> None:
        """A stream begins; what was shown may come again."""
        if self._line is not None and self._shown is not None:
            self._cut = (self._line, self._shown + self._skip)  # it may have broken off in what came again
        self._again = sum(self._seen.values(), Counter())
        self._head, self._line = b"", None

    def feed(self, piece: bytes) -> bytes:
        """What to show of a piece of the stream."""
        out: list[bytes] = []
        while piece:
            if self._line is None:
                piece = self._begin_line(piece, out)
                continue
            text, newline, piece = piece.partition(b"\n")
            self._go_on(text + newline, out)
            if newline:
                self._end_line(self._line)
        return b"".join(out)

    def _begin_line(self, piece: bytes, out: list[bytes]) -> bytes:
        """Take a line's time; what is left of the piece."""
        stamp, space, rest = (self._head + piece).partition(b" ")
        if not space and len(stamp) <= _LONGEST_STAMP:
            self._head = stamp
            return b""
        line = stamp.decode(errors="replace")
        self._head, self._line, self._shown, self._skip = b"", line, 0, 0
        if self._again[line] > 0:
            self._again[line] -= 1
            self._shown = None
        elif line < self._first:
            self._shown = None  # from before the part that was asked for
        elif line == self._cut[0]:
            (_, self._skip), self._cut = self._cut, ("", 0)
        else:
            self._first, self._newest = self._first or line, max(self._newest, line)
            if self._timestamps:
                out.append(stamp + space)
        return rest

    def _go_on(self, text: bytes, out: list[bytes]) -> None:
        if self._shown is None:
            return
        skipped = min(self._skip, len(text))
        out.append(text[skipped:])
        self._skip -= skipped
        self._shown += len(text)

    def _end_line(self, line: str) -> None:
        if self._shown is not None:
            self._seen.setdefault(line[:_SECOND], Counter())[line] += 1
            if len(self._seen) > 1 + _SLACK_S:
                del self._seen[min(self._seen)]
        self._line = None
