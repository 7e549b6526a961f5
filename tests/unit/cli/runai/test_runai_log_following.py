"""The position in a followed log, across broken connections."""

from __future__ import annotations

import pytest

from aliquot.client.log_following import OffsetCursor

LINES = [b"one\n", b"two words\n", b"\n", b"caf\xc3\xa9\n", b"2026-01-31T11:00:00Z its own time\n", b"last"]
LOG = b"".join(LINES)
STAMP = b"2026-01-31T12:00:00Z "
STAMPED = b"".join(STAMP + line for line in LINES)


def stream(offset: int, *, timestamps: bool) -> bytes:
    """What the server sends from an offset; with timestamps, a time before the first chunk and before each line."""
    rest = LOG[offset:]
    if not timestamps or not rest:
        return rest
    return STAMP + rest.replace(b"\n", b"\n" + STAMP)


def feed(cursor: OffsetCursor, data: bytes, size: int) -> bytes:
    return b"".join(cursor.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_break_anywhere_loses_and_repeats_nothing(timestamps: bool, size: int) -> None:
    """The connection may break in the middle of a timestamp, a line or a character."""
    whole = stream(0, timestamps=timestamps)
    assert not timestamps or whole == STAMPED
    for cut in range(len(whole) + 1):
        cursor = OffsetCursor(timestamps=timestamps)
        cursor.begin_stream(0)
        out = feed(cursor, whole[:cut], size)
        assert cursor.offset is not None
        again = stream(cursor.offset, timestamps=timestamps)
        cursor.begin_stream(cursor.offset)
        out += feed(cursor, again, size)
        assert (out, cursor.offset) == (whole, len(LOG)), cut


def test_a_stream_that_begins_later() -> None:
    """The offset counts from where the answer begins, as after --tail or a log rotation."""
    cursor = OffsetCursor()
    cursor.begin_stream(100)
    assert (cursor.feed(b"abc\n"), cursor.offset) == (b"abc\n", 104)


def test_a_server_without_offsets() -> None:
    """Without an offset from the server everything is printed, and the log cannot be resumed."""
    cursor = OffsetCursor()
    cursor.begin_stream(None)
    assert (cursor.feed(b"abc"), cursor.offset) == (b"abc", None)
