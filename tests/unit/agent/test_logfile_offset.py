"""A reader of a log that lost its connection goes on from exactly where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.agent.runtimes import logfile
from aliquot.streams import LogOptions

LOG = b"one\ntwo\nthree\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "log"
    made.write_bytes(LOG)
    return made


async def _read(path: Path, options: LogOptions) -> bytes:
    return b"".join([piece async for piece in logfile.read(path, options, lambda: True)])


@pytest.mark.parametrize("options", [LogOptions(), LogOptions(tail_lines=1), LogOptions(tail_lines=0)])
async def test_where_an_answer_begins(path: Path, options: LogOptions) -> None:
    """It is said beforehand, and it is true."""
    assert await _read(path, options) == LOG[logfile.start(path, options) :]


@pytest.mark.parametrize("offset", [0, 5, len(LOG)])
async def test_going_on(path: Path, offset: int) -> None:
    """Also in the middle of a line, and whatever else was asked for at first."""
    options = LogOptions(offset=offset, tail_lines=1, since=1.0)
    assert await _read(path, options) == LOG[offset:]
    assert logfile.start(path, options) == offset
