"""A pod's log: a file that only grows at its end, and is given back to the disk at its beginning.

Why no rotation by renaming or copying: the one who writes (`cat`, see launcher.py) keeps its file open, and copying
then truncating loses what is written in between. Instead the space of the oldest part is punched out of the file:
size and offsets stay, so a reader's place stays valid, nothing newer is touched, and it needs no help from the
writer. Nothing is between the pod and the disk but the kernel and `cat`, so a platform that is killed loses nothing.

Why no time stamp in each line: somebody would have to write them, for hundreds of pods. The platform notes once a
second how long each log is and when it was last written: marks of (time, offset). A line's time is that of the first
mark behind it: a second off at most while the platform runs, and for what was printed while it was down the time of
the last write.
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
_BLOCK = 4096  # holes are made of whole blocks
_POLL_SECONDS = 0.1  # how soon a follower sees new lines
_MOST_MARKS_BYTES = 1 << 18
_CLOCK_SLACK = 0.01  # files are stamped by the kernel's tick, which is a little behind the clock
Mark = tuple[float, int]


class LogTrimmer:
    """Takes marks and gives space back; one per running pod."""

    def __init__(self, path: Path, piece: int, pieces: int) -> None:
        self._path = path
        self._piece, self._pieces = piece, pieces
        marks = read_timestamps(path)
        self._size = marks[-1][1] if marks else 0  # as far as somebody has looked
        self._start = 0

    def tick(self) -> bool:
        """True when it grew by so much that somebody should look again soon."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        if found.st_size == self._size:
            return False
        grown, self._size = found.st_size - self._size, found.st_size
        with contextlib.suppress(OSError):  # on a full disk lines are dated a little later, and nothing else happens
            _add_mark(self._path, (found.st_mtime, found.st_size))
        if found.st_size - self._start > self._piece * self._pieces:
            with contextlib.suppress(OSError):  # gone meanwhile, or tried again at the next growth
                self._give_back(found.st_size - self._piece * (self._pieces - 1))
        return grown > self._piece

    def _give_back(self, end: int) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._start = end // _BLOCK * _BLOCK
            syscalls.punch(handle, self._start)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            # A file system without holes: rather lose the log than fill the disk.
            os.ftruncate(handle, 0)
            self._start = self._size = 0
            _marks_file(self._path).unlink(missing_ok=True)
        finally:
            os.close(handle)


def _marks_file(path: Path) -> Path:
    return path.with_name(path.name + ".marks")


def _add_mark(path: Path, mark: Mark) -> None:
    file = _marks_file(path)
    with open(file, "a", encoding="ascii") as marks:
        marks.write(f"{mark[0]:.3f} {mark[1]}\n")
        long = marks.tell() > _MOST_MARKS_BYTES
    if long:  # every other one: times become coarser, the older the coarser
        lines = file.read_text().splitlines()
        half = len(lines) // 2
        file.write_text("\n".join([*lines[:half:2], *lines[half:]]) + "\n")


def read_timestamps(path: Path) -> list[Mark]:
    marks = []
    with contextlib.suppress(OSError, ValueError):
        for line in _marks_file(path).read_text().splitlines():
            time, offset = line.split()
            marks.append((float(time), int(offset)))
    return marks


async def read(
    path: Path, options: LogOptions, ended: Callable[[], bool], begin: int = 0, end: int | None = None
) -> AsyncIterator[bytes]:
    """The log between two offsets, as asked for. `ended` says whether nothing more will come."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        place = _start(handle, path, options, begin, end)
        stamper = _Stamper(path) if options.timestamps else None
        left = options.limit_bytes
        async for data in _pieces(handle, place, end, options.follow, ended):
            shown = stamper.stamped(*data) if stamper else data[1]
            if left is not None:
                shown, left = shown[:left], left - len(shown)
            if shown:
                yield shown
            if left is not None and left <= 0:
                return
    finally:
        os.close(handle)


def start(path: Path, options: LogOptions, begin: int = 0, end: int | None = None) -> int:
    """Where in the log `read` will begin."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _start(handle, path, options, begin, end)
    finally:
        os.close(handle)


def _start(handle: int, path: Path, options: LogOptions, begin: int, end: int | None) -> int:
    size = os.fstat(handle).st_size
    if begin > size:
        begin = 0  # emptied, see _give_back
    first = _first(handle, begin)
    if first > begin:
        first = _first_line(handle, first)
    if options.offset is not None:
        # A place behind the end is of another log: of the one before it was emptied, or of an earlier pod.
        return max(first, options.offset) if options.offset <= size else first
    place = first
    if options.since is not None:
        place = max(place, _offset_since(handle, path, options.since))
    if options.tail_lines is not None:
        place = max(place, _tail(handle, place, options.tail_lines, end))
    return place


async def _pieces(
    handle: int, place: int, end: int | None, follow: bool, ended: Callable[[], bool]
) -> AsyncIterator[tuple[int, bytes]]:
    """(offset, bytes). What was given back while we read is left out, up to the next whole line."""
    while True:
        last = ended()  # asked before the read: what was written before it ended is then seen
        size = _CHUNK if end is None else max(0, min(_CHUNK, end - place))
        data = await asyncio.to_thread(os.pread, handle, size, place)
        start = _first(handle, place) if data else place
        if start > place:
            place = _first_line(handle, start)
        elif data:
            yield place, data
            place += len(data)
        elif os.fstat(handle).st_size < place:  # emptied, see _give_back
            place = 0
        elif last or not follow:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


def _first(handle: int, place: int) -> int:
    """The first byte at or after `place` that is still there."""
    end = os.fstat(handle).st_size  # asked first: what is written between both calls is still to come
    try:
        return os.lseek(handle, place, os.SEEK_DATA)
    except OSError:
        return end


def _first_line(handle: int, place: int) -> int:
    """The first line that begins at or after `place`."""
    if place == 0:
        return 0
    place -= 1
    while data := os.pread(handle, _CHUNK, place):
        found = data.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(data)
    return place


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
            found = data.rindex(b"\n")
            lines -= 1
            if lines == 0:
                return begin + found + 1
            data = data[:found]
        end = begin
    return start


def _offset_since(handle: int, path: Path, since: float) -> int:
    """Where lines that may be as young as `since` begin."""
    since -= _CLOCK_SLACK
    older = [offset for time, offset in read_timestamps(path) if time < since]
    found = os.fstat(handle)
    if found.st_mtime < since:
        return found.st_size
    return _first_line(handle, older[-1]) if older else 0


class _Stamper:
    """Puts a time before each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: list[Mark] = read_timestamps(path)
        self._begins = True

    def stamped(self, place: int, data: bytes) -> bytes:
        shown = []
        for line in _lines(data):
            if self._begins:
                shown.append(units.timestamp_text(self._time(place)).encode() + b" ")
            self._begins = line.endswith(b"\n")
            shown.append(line)
            place += len(line)
        return b"".join(shown)

    def _time(self, place: int) -> float:
        if not self._marks or self._marks[-1][1] <= place:
            self._marks = read_timestamps(self._path)
        found = bisect_left(self._marks, place + 1, key=lambda mark: mark[1])
        if found < len(self._marks):
            return self._marks[found][0]
        with contextlib.suppress(OSError):
            return round(os.stat(self._path).st_mtime, 3)
        return 0.0


def _lines(data: bytes) -> list[bytes]:
    """Split at line feeds alone: a carriage return is part of a progress bar."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
