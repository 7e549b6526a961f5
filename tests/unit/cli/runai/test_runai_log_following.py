"""A followed log is one log, whatever happens to the connection."""

from __future__ import annotations

import pytest

from aliquot.client.log_following import OffsetCursor

LINES = [b"one\n", b"two words\n", b"\n", b"caf\xc3\xa9\n", b"2026-01-31T11:00:00Z its own time\n", b"last"]
LOG = b"".join(LINES)
STAMP = b"2026-01-31T12:00:00Z "
STAMPED = b"".join(STAMP + line for line in LINES)


def stream(offset: int, *, timestamps: bool) -> bytes:
    """What the server sends from an offset: with a time before its first piece and before each line."""
    rest = LOG[offset:]
    if not timestamps or not rest:
        return rest
    return STAMP + rest.replace(b"\n", b"\n" + STAMP)


def fed(place: OffsetCursor, data: bytes, size: int) -> bytes:
    return b"".join(place.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_break_anywhere_loses_and_repeats_nothing(timestamps: bool, size: int) -> None:
    """Also in the middle of a timestamp, a line or a letter."""
    whole = stream(0, timestamps=timestamps)
    assert not timestamps or whole == STAMPED
    for cut in range(len(whole) + 1):
        place = OffsetCursor(timestamps=timestamps)
        place.begin(0)
        out = fed(place, whole[:cut], size)
        assert place.offset is not None
        again = stream(place.offset, timestamps=timestamps)
        place.begin(place.offset)
        out += fed(place, again, size)
        assert (out, place.offset) == (whole, len(LOG)), cut


def test_a_stream_that_begins_later() -> None:
    """Counting starts where the server says: the last lines only, or what rotation left."""
    place = OffsetCursor()
    place.begin(100)
    assert (place.feed(b"abc\n"), place.offset) == (b"abc\n", 104)


def test_a_server_that_does_not_say_where() -> None:
    """Everything is shown; there is just no place to go on from."""
    place = OffsetCursor()
    place.begin(None)
    assert (place.feed(b"abc"), place.offset) == (b"abc", None)
