"""A log reader that lost its connection goes on at exactly the same offset."""

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
async def test_start_offset_is_reported(path: Path, options: LogOptions) -> None:
    """The reported start offset is where the output begins."""
    assert await _read(path, options) == LOG[log_file.start(path, options) :]


@pytest.mark.parametrize("offset", [0, 5, len(LOG)])
async def test_reading_goes_on_at_an_offset(path: Path, offset: int) -> None:
    """Also in the middle of a line, and whatever the other options are."""
    options = LogOptions(offset=offset, tail_lines=1, since=1.0)
    assert await _read(path, options) == LOG[offset:]
    assert log_file.start(path, options) == offset


async def test_an_offset_of_another_log(path: Path) -> None:
    """An offset behind the end is not of this log: it is read from its beginning, and the start offset says so."""
    options = LogOptions(offset=len(LOG) + 1)
    assert log_file.start(path, options) == 0
    assert await _read(path, options) == LOG


@pytest.mark.parametrize("begin", range(len(LOG) + 1))
async def test_one_attempt_of_several(path: Path, begin: int) -> None:
    """The part of one attempt is read exactly, wherever it begins and ends: also in the middle of a line."""
    for end in range(begin, len(LOG) + 1):
        assert await _read(path, LogOptions(), begin, end) == LOG[begin:end]
        assert await _read(path, LogOptions(tail_lines=1), begin, end) in (LOG[begin:end], *_last_lines(begin, end))
    assert await _read(path, LogOptions(), begin) == LOG[begin:]


def _last_lines(begin: int, end: int) -> list[bytes]:
    return LOG[begin:end].splitlines(keepends=True)[-1:]


async def test_the_part_of_a_log_that_was_emptied(path: Path) -> None:
    """On a file system without holes the log is emptied; an attempt's part then begins with what came after."""
    assert await _read(path, LogOptions(), begin=1000) == LOG
