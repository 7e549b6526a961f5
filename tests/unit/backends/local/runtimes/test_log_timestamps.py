"""A pod's log: times from the timestamps index, and trimming at its beginning."""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.backends.local.runtimes.log_file import LogTrimmer, read, read_timestamps
from aliquot.streams import LogOptions

CHUNK = 1 << 16


def grow(path: Path, text: str, at: float | None = None) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
    if at is not None:
        os.utime(path, (at, at))


async def shown(path: Path, **options: object) -> str:
    selected = LogOptions(**options)  # type: ignore[arg-type]
    return b"".join([chunk async for chunk in read(path, selected, lambda: True)]).decode()


async def test_times_of_lines(tmp_path: Path) -> None:
    """A line has the time of the first timestamp after it."""
    path = tmp_path / "log"
    trimmer = LogTrimmer(path, CHUNK, 2)
    for second, text in ((1000.0, "one\n"), (2000.0, "two\nthree\n")):
        grow(path, text, second)
        trimmer.update()
    assert (await shown(path, timestamps=True)).splitlines() == [
        "1970-01-01T00:16:40Z one",
        "1970-01-01T00:33:20Z two",
        "1970-01-01T00:33:20Z three",
    ]


async def test_since(tmp_path: Path) -> None:
    """Lines from before the given time are left out."""
    path = tmp_path / "log"
    trimmer = LogTrimmer(path, CHUNK, 2)
    for second, text in ((1000.0, "one\n"), (2000.0, "two\n")):
        grow(path, text, second)
        trimmer.update()
    assert await shown(path, since=1500.0) == "two\n"
    assert await shown(path, since=2500.0) == ""
    assert await shown(path, since=500.0) == "one\ntwo\n"


async def test_lines_printed_while_the_platform_was_down(tmp_path: Path) -> None:
    """Lines that were printed while no platform ran get the time of the last write."""
    path = tmp_path / "log"
    grow(path, "before\n", 1000.0)
    LogTrimmer(path, CHUNK, 2).update()
    assert read_timestamps(path) == [(1000.0, 7)]


def test_no_growth_no_timestamp(tmp_path: Path) -> None:
    """A log that does not grow gets no timestamps."""
    path = tmp_path / "log"
    grow(path, "x\n")
    trimmer = LogTrimmer(path, CHUNK, 2)
    for _ in range(3):
        trimmer.update()
    assert len(read_timestamps(path)) == 1


async def test_a_long_log_is_trimmed(tmp_path: Path) -> None:
    """The beginning of a long log is removed, and the rest begins with a whole line."""
    path = tmp_path / "log"
    trimmer = LogTrimmer(path, CHUNK, 2)
    for number in range(40_000):
        grow(path, f"{number:09}\n") if number % 1000 else trimmer.update()
    trimmer.update()
    lines = (await shown(path)).splitlines()
    assert lines[-1] == "000039999"
    assert all(len(line) == 9 for line in lines)
    assert CHUNK <= len(lines) * 10 <= 2 * CHUNK
    assert path.stat().st_blocks * 512 <= 3 * CHUNK


async def test_reader_that_is_too_slow(tmp_path: Path) -> None:
    """A reader whose offset was trimmed goes on at the next whole line, and never reads zero bytes."""
    path = tmp_path / "log"
    trimmer = LogTrimmer(path, CHUNK, 2)
    grow(path, "".join(f"{number:09}\n" for number in range(7_000)))
    pieces = read(path, LogOptions(), lambda: True)
    first = await anext(pieces)
    grow(path, "".join(f"{number:09}\n" for number in range(7_000, 60_000)))
    trimmer.update()
    rest = b"".join([piece async for piece in pieces])
    assert first.startswith(b"000000000\n")
    assert b"\0" not in rest
    assert rest.endswith(b"000059999\n")
    assert all(len(line) == 9 for line in rest.splitlines())
