"""A reader of a log that lost its connection goes on from exactly where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.backends.local.runtimes import log_file
from aliquot.streams import LogOptions

LOG = b"one\ntwo\nthree\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "log"
    made.write_bytes(LOG)
    return made


async def _read(path: Path, options: LogOptions, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in log_file.read(path, options, lambda: True, begin, end)])


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(tail_lines=1), LogOptions(tail_lines=0)])
async def test_where_an_answer_begins(path: Path, options: LogOptions) -> None:
    """It is said beforehand, and it is true."""
    assert await _read(path, options) == LOG[log_file.start(path, options) :]


@pytest.mark.parametrize("offset", [0, 5, len(LOG)])
async def test_going_on(path: Path, offset: int) -> None:
    """Also in the middle of a line, and whatever else was asked for at first."""
    options = LogOptions(offset=offset, tail_lines=1, since=1.0)
    assert await _read(path, options) == LOG[offset:]
    assert log_file.start(path, options) == offset


async def test_a_place_in_another_log(path: Path) -> None:
    """Behind the end nobody has read: it is told from the beginning, and says so."""
    options = LogOptions(offset=len(LOG) + 1)
    assert log_file.start(path, options) == 0
    assert await _read(path, options) == LOG


@pytest.mark.parametrize("begin", range(len(LOG) + 1))
async def test_one_attempt_of_several(path: Path, begin: int) -> None:
    """A part of the log is read exactly, wherever it begins and ends: also in the middle of a line."""
    for end in range(begin, len(LOG) + 1):
        assert await _read(path, LogOptions(), begin, end) == LOG[begin:end]
        assert await _read(path, LogOptions(tail_lines=1), begin, end) in (LOG[begin:end], *_last_lines(begin, end))
    assert await _read(path, LogOptions(), begin) == LOG[begin:]


def _last_lines(begin: int, end: int) -> list[bytes]:
    return LOG[begin:end].splitlines(keepends=True)[-1:]


async def test_the_part_of_a_log_that_was_emptied(path: Path) -> None:
    """Where a file system without holes made us empty the log, a part of it begins with what came after."""
    assert await _read(path, LogOptions(), begin=1000) == LOG
