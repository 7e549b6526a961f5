"""A pod's log: a file that grows at its end and whose oldest part is given back to the disk.

Why no rotation by renaming or copying: the writer (`cat`, see launcher.py) keeps its file open, and copying then
truncating loses what is written in between. Instead the disk space of the oldest part is punched out of the file: size
and offsets stay, so a reader's offset stays valid, newer bytes are not touched, and the writer does not take part. Only
the kernel and `cat` are between the pod and the disk, so nothing is lost when the platform is killed.

Why no timestamp in each line: a process per pod would have to write them. Instead the platform records once a second
how long each log is and when it was last written, in an index of (time, offset) next to the log. A line's time is that
of the first entry behind it: at most a second off while the platform runs. Lines that were printed while the platform
was down have the time of the last write.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aliquot import units
from aliquot.backends.local.runtimes import syscalls
from aliquot.streams import LogOptions

_CHUNK = 1 << 16
_BLOCK = 4096  # holes consist of whole blocks
_POLL_SECONDS = 0.1  # how soon a follower sees new lines
_MAX_INDEX_BYTES = 1 << 18
_CLOCK_SLACK = 0.01  # file times come from the kernel's tick, which is a little behind the clock
Timestamp = tuple[float, int]  # seconds since 1970, length of the log at that time


class LogTrimmer:
    """Records timestamps and trims the log; one per running pod."""

    def __init__(self, path: Path, chunk: int, chunks: int) -> None:
        """Keep at most `chunks` times `chunk` bytes."""
        self._path = path
        self._chunk, self._chunks = chunk, chunks
        timestamps = read_timestamps(path)
        self._size = timestamps[-1][1] if timestamps else 0  # as of the last timestamp
        self._start = 0  # of what is still on disk

    def update(self) -> bool:
        """Record a timestamp and trim if the log has grown; True when it grew so fast that it must be updated soon."""
        try:
            status = os.stat(self._path)
        except OSError:
            return False
        if status.st_size == self._size:
            return False
        grown, self._size = status.st_size - self._size, status.st_size
        with contextlib.suppress(OSError):  # on a full disk lines get a later time, and nothing else happens
            _add_timestamp(self._path, (status.st_mtime, status.st_size))
        if status.st_size - self._start > self._chunk * self._chunks:
            with contextlib.suppress(OSError):  # the log is gone, or it is tried again at the next growth
                self._trim(status.st_size - self._chunk * (self._chunks - 1))
        return grown > self._chunk

    def _trim(self, end: int) -> None:
        """Give the disk space before this offset back."""
        handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._start = end // _BLOCK * _BLOCK
            syscalls.punch(handle, self._start)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # A file system without holes: losing the log is better than filling the disk.
            os.ftruncate(handle, 0)
            self._start = self._size = 0
            _index_file(self._path).unlink(missing_ok=True)
        finally:
            os.close(handle)


def _index_file(path: Path) -> Path:
    return path.with_name(path.name + ".marks")


def _add_timestamp(path: Path, timestamp: Timestamp) -> None:
    file = _index_file(path)
    with open(file, "a", encoding="ascii") as index:
        index.write(f"{timestamp[0]:.3f} {timestamp[1]}\n")
        too_long = index.tell() > _MAX_INDEX_BYTES
    if too_long:  # drop every other entry of the older half: old lines get coarser times
        lines = file.read_text().splitlines()
        half = len(lines) // 2
        file.write_text("\n".join([*lines[:half:2], *lines[half:]]) + "\n")


def read_timestamps(path: Path) -> list[Timestamp]:
    timestamps = []
    with contextlib.suppress(OSError, ValueError):
        for line in _index_file(path).read_text().splitlines():
            time, offset = line.split()
            timestamps.append((float(time), int(offset)))
    return timestamps


async def read(
    path: Path, options: LogOptions, ended: Callable[[], bool], begin: int = 0, end: int | None = None
) -> AsyncIterator[bytes]:
    """The part of the log between two offsets that the options select. `ended` tells whether the output has ended."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        offset = _start(handle, path, options, begin, end)
        timestamper = _Timestamper(path) if options.timestamps else None
        left = options.limit_bytes
        async for chunk in _chunks(handle, offset, end, options.follow, ended):
            output = timestamper.with_timestamps(*chunk) if timestamper else chunk[1]
            if left is not None:
                output, left = output[:left], left - len(output)
            if output:
                yield output
            if left is not None and left <= 0:
                return
    finally:
        os.close(handle)


def start(path: Path, options: LogOptions, begin: int = 0, end: int | None = None) -> int:
    """The offset at which `read` will begin."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _start(handle, path, options, begin, end)
    finally:
        os.close(handle)


def _start(handle: int, path: Path, options: LogOptions, begin: int, end: int | None) -> int:
    size = os.fstat(handle).st_size
    if begin > size:
        begin = 0  # the log was emptied, see _trim
    first = _first_data(handle, begin)
    if first > begin:
        first = _first_line(handle, first)
    if options.offset is not None:
        # An offset behind the end belongs to another log: to an earlier pod, or to this one before it was emptied.
        return max(first, options.offset) if options.offset <= size else first
    offset = first
    if options.since is not None:
        offset = max(offset, _offset_since(handle, path, options.since))
    if options.tail_lines is not None:
        offset = max(offset, _tail(handle, offset, options.tail_lines, end))
    return offset


async def _chunks(
    handle: int, offset: int, end: int | None, follow: bool, ended: Callable[[], bool]
) -> AsyncIterator[tuple[int, bytes]]:
    """(offset, bytes). A part that is trimmed while we read is left out, up to the next whole line."""
    while True:
        last = ended()  # asked before the read, so that everything written before the end is read
        size = _CHUNK if end is None else max(0, min(_CHUNK, end - offset))
        data = await asyncio.to_thread(os.pread, handle, size, offset)
        start = _first_data(handle, offset) if data else offset
        if start > offset:
            offset = _first_line(handle, start)
        elif data:
            yield offset, data
            offset += len(data)
        elif os.fstat(handle).st_size < offset:  # emptied, see _trim
            offset = 0
        elif last or not follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


def _first_data(handle: int, offset: int) -> int:
    """The first byte at or after `offset` that is still on disk."""
    end = os.fstat(handle).st_size  # asked first: bytes written between both calls are still to come
    try:
        return os.lseek(handle, offset, os.SEEK_DATA)
    except OSError:
        return end


def _first_line(handle: int, offset: int) -> int:
    """The start of the first line that begins at or after `offset`."""
    if offset == 0:
        return 0
    offset -= 1
    while data := os.pread(handle, _CHUNK, offset):
        newline = data.find(b"\n")
        if newline >= 0:
            return offset + newline + 1
        offset += len(data)
    return offset


def _tail(handle: int, start: int, lines: int, end: int | None) -> int:
    """Where the last `lines` lines begin."""
    end = os.fstat(handle).st_size if end is None else end
    if lines <= 0:
        return end
    if end and os.pread(handle, 1, end - 1) == b"\n":
        end -= 1  # ends the last line; does not begin another
    while end > start:
        begin = max(start, end - _CHUNK)
        data = os.pread(handle, end - begin, begin)
        for _ in range(data.count(b"\n")):
            newline = data.rindex(b"\n")
            lines -= 1
            if lines == 0:
                return begin + newline + 1
            data = data[:newline]
        end = begin
    return start


def _offset_since(handle: int, path: Path, since: float) -> int:
    """Where the lines begin that may be as new as `since`."""
    since -= _CLOCK_SLACK
    older = [offset for time, offset in read_timestamps(path) if time < since]
    status = os.fstat(handle)
    if status.st_mtime < since:
        return status.st_size
    return _first_line(handle, older[-1]) if older else 0


class _Timestamper:
    """Puts a time before each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._timestamps: list[Timestamp] = read_timestamps(path)
        self._at_line_start = True

    def with_timestamps(self, offset: int, data: bytes) -> bytes:
        output = []
        for line in _lines(data):
            if self._at_line_start:
                output.append(units.timestamp_text(self._time(offset)).encode() + b" ")
            self._at_line_start = line.endswith(b"\n")
            output.append(line)
            offset += len(line)
        return b"".join(output)

    def _time(self, offset: int) -> float:
        if not self._timestamps or self._timestamps[-1][1] <= offset:
            self._timestamps = read_timestamps(self._path)
        index = bisect_left(self._timestamps, offset + 1, key=lambda timestamp: timestamp[1])
        if index < len(self._timestamps):
            return self._timestamps[index][0]
        with contextlib.suppress(OSError):
            return round(os.stat(self._path).st_mtime, 3)
        return 0.0


def _lines(data: bytes) -> list[bytes]:
    """Split at line feeds only: a carriage return belongs to a progress bar."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])
