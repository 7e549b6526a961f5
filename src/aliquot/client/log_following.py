"""Resumes a log after a broken connection, without a gap and without a repeated byte.

A log with offsets reports the offset of its first byte. `OffsetCursor` counts from there, so the log resumes at the
right byte even in the middle of a line. Timestamps are not part of the log and are not counted.

A log without offsets, such as the kubelet's, begins each line with its time and can be read from a given second on.
`TimestampCursor` remembers the lines that it has shown of the last seconds and skips them when they are sent again.
Lines are identified by their time in nanoseconds; of several lines with the same time, it skips as many as it has
shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from aliquot.streams import Log, LogOptions
from aliquot.units import timestamp

_LONGEST_STAMP = 64
_SECOND = len("2026-01-31T12:00:00")  # characters of a time up to its second
# Lines of stdout and stderr are not strictly in the order of their times, so a resumed log begins this much earlier.
_OVERLAP_S = 1


def cursor_for(log: Log, *, timestamps: bool) -> OffsetCursor | TimestampCursor:
    """The cursor for this kind of log."""
    return TimestampCursor(timestamps=timestamps) if log.has_line_times else OffsetCursor(timestamps=timestamps)


class OffsetCursor:
    """The reader's position in a log with offsets."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # Bytes from the log's beginning; None if the server does not report it.
        self.offset: int | None = None
        self._in_line = False
        self._stamp = b""
        self._drop_stamp = False

    @property
    def can_resume(self) -> bool:
        return self.offset is not None

    def resume_options(self, options: LogOptions, *, follow: bool) -> LogOptions:
        """The options that request the rest of the log."""
        return dataclasses.replace(options, follow=follow, offset=self.offset, tail_lines=None, since=None)

    def begin_stream(self, offset: int | None) -> None:
        """Called when a stream begins, with the offset of its first byte."""
        # Each stream begins with a timestamp, even if it continues a line.
        self._drop_stamp = self._in_line and offset is not None and offset == self.offset
        self.offset, self._in_line, self._stamp = offset, self._in_line and not self._timestamps, b""

    def feed(self, chunk: bytes) -> bytes:
        """The part of a chunk to show."""
        if not self._timestamps:
            self._count(chunk)
            return chunk
        out: list[bytes] = []
        while chunk:
            if self._in_line:
                text, newline, chunk = chunk.partition(b"\n")
                self._count(text + newline)
                out.append(text + newline)
            else:
                chunk = self._begin_line(chunk, out)
        return b"".join(out)

    def _begin_line(self, chunk: bytes, out: list[bytes]) -> bytes:
        """Take a line's timestamp; return the rest of the chunk."""
        stamp, space, rest = (self._stamp + chunk).partition(b" ")
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
    """The reader's position in a log without offsets."""

    can_resume = True

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        # Times of the first and the newest line shown, as text. They compare, as all have the same number of digits.
        self._first = self._newest = ""
        # Complete lines shown, by time, for each of the last two seconds.
        self._seen: dict[str, Counter[str]] = {}
        # The lines among them that this stream may still repeat.
        self._repeated: Counter[str] = Counter()
        # The line at which the last stream broke, and how many of its bytes were shown.
        self._cut = ("", 0)
        # The beginning of a time that is not complete yet.
        self._head = b""
        # The current line, None between lines; its bytes shown so far, None when it is skipped.
        self._line: str | None = None
        self._shown: int | None = None
        self._skip = 0

    def resume_options(self, options: LogOptions, *, follow: bool) -> LogOptions:
        """The options that request the rest of the log and the last second again."""
        if not self._newest:
            return dataclasses.replace(options, follow=follow, line_times=True)
        since = float(math.floor(timestamp(self._newest)) - _OVERLAP_S)
        return dataclasses.replace(options, follow=follow, line_times=True, resume=since, tail_lines=None, since=None)

    def begin_stream(self, offset: int | None) -> None:
        """Called when a stream begins, which may repeat lines that were shown."""
        if self._line is not None and self._shown is not None:
            self._cut = (self._line, self._shown + self._skip)  # the stream may have broken inside the repeated part
        self._repeated = sum(self._seen.values(), Counter())
        self._head, self._line = b"", None

    def feed(self, chunk: bytes) -> bytes:
        """The part of a chunk to show."""
        out: list[bytes] = []
        while chunk:
            if self._line is None:
                chunk = self._begin_line(chunk, out)
                continue
            text, newline, chunk = chunk.partition(b"\n")
            self._show(text + newline, out)
            if newline:
                self._end_line(self._line)
        return b"".join(out)

    def _begin_line(self, chunk: bytes, out: list[bytes]) -> bytes:
        """Take a line's time; return the rest of the chunk."""
        stamp, space, rest = (self._head + chunk).partition(b" ")
        if not space and len(stamp) <= _LONGEST_STAMP:
            self._head = stamp
            return b""
        line = stamp.decode(errors="replace")
        self._head, self._line, self._shown, self._skip = b"", line, 0, 0
        if self._repeated[line] > 0:
            self._repeated[line] -= 1
            self._shown = None
        elif line < self._first:
            self._shown = None  # from before the requested part
        elif line == self._cut[0]:
            (_, self._skip), self._cut = self._cut, ("", 0)
        else:
            self._first, self._newest = self._first or line, max(self._newest, line)
            if self._timestamps:
                out.append(stamp + space)
        return rest

    def _show(self, text: bytes, out: list[bytes]) -> None:
        if self._shown is None:
            return
        skipped = min(self._skip, len(text))
        out.append(text[skipped:])
        self._skip -= skipped
        self._shown += len(text)

    def _end_line(self, line: str) -> None:
        if self._shown is not None:
            self._seen.setdefault(line[:_SECOND], Counter())[line] += 1
            if len(self._seen) > 1 + _OVERLAP_S:
                del self._seen[min(self._seen)]
        self._line = None
