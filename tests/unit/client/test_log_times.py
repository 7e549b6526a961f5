"""A log without offsets resumes by the times of its lines."""

from __future__ import annotations

import pytest

from aliquot.client.log_following import TimestampCursor, cursor_for
from aliquot.streams import Log, LogOptions
from aliquot.units import timestamp

# Two lines with one time; a line after a later one; an empty line; a line that begins with a time itself.
LINES = [
    ("2026-01-31T12:00:00.100000000Z", b"one\n"),
    ("2026-01-31T12:00:00.900000000Z", b"two words\n"),
    ("2026-01-31T12:00:00.900000000Z", b"two words\n"),
    ("2026-01-31T12:00:01.500000002Z", b"later\n"),
    ("2026-01-31T12:00:01.500000001Z", b"earlier\n"),
    ("2026-01-31T12:00:02.000000000Z", b"\n"),
    ("2026-01-31T12:00:05.000000000Z", b"2026-01-31T11:00:00Z its own time\n"),
    ("2026-01-31T12:00:06.000000000Z", b"last"),
]


def stream(since: float | None = None) -> bytes:
    """The kubelet's response: every line from a given second on."""
    lines = [(stamp, text) for stamp, text in LINES if since is None or timestamp(stamp) >= since]
    return b"".join(stamp.encode() + b" " + text for stamp, text in lines)


def shown(timestamps: bool) -> bytes:
    return b"".join((stamp.encode() + b" " if timestamps else b"") + text for stamp, text in LINES)


def fed(cursor: TimestampCursor, data: bytes, size: int) -> bytes:
    cursor.begin_stream(None)
    return b"".join(cursor.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_break_anywhere_loses_and_repeats_nothing(timestamps: bool, size: int) -> None:
    """A break inside a time, a line or a character loses and repeats nothing, also if the next stream breaks."""
    whole = stream()
    for cut in range(len(whole) + 1):
        cursor = TimestampCursor(timestamps=timestamps)
        out = fed(cursor, whole[:cut], size)
        second = stream(cursor.resume_options(LogOptions(), follow=True).resume)
        out += fed(cursor, second[: len(second) // 2], size)
        out += fed(cursor, stream(cursor.resume_options(LogOptions(), follow=True).resume), size)
        assert out == shown(timestamps), cut


def test_resume_options() -> None:
    """A resumed log is requested from one second before the newest line, without the original tail and since."""
    cursor, options = TimestampCursor(), LogOptions(tail_lines=3, since=7.0, pod_uid="u")
    assert cursor.resume_options(options, follow=True) == LogOptions(True, 3, 7.0, pod_uid="u", line_times=True)
    fed(cursor, stream(), 1000)
    resumed = cursor.resume_options(options, follow=False)
    assert resumed == LogOptions(line_times=True, resume=timestamp("2026-01-31T12:00:05Z"), pod_uid="u")


def test_lines_before_the_first() -> None:
    """Lines from before the requested tail are skipped when their second is sent again."""
    cursor = TimestampCursor()
    assert fed(cursor, stream()[len(LINES[0][0]) + 5 :], 1000).startswith(b"two words")
    cursor = TimestampCursor()
    whole = stream().splitlines(keepends=True)
    out = fed(cursor, whole[2], 1000) + fed(cursor, b"".join(whole[:4]), 1000)
    assert out == b"two words\ntwo words\nlater\n"


def test_memory_stays_small() -> None:
    """Only lines of the last two seconds are remembered."""
    cursor = TimestampCursor()
    for second in range(50):
        cursor.feed(b"".join(b"2026-01-31T12:00:%02d.%09dZ x\n" % (second, n) for n in range(10)))
    assert sum(len(each) for each in cursor._seen.values()) == 20


@pytest.mark.parametrize("log, can_resume", [(Log(iter(()), has_line_times=True), True), (Log(iter(())), False)])  # type: ignore[arg-type]
def test_can_resume(log: Log, can_resume: bool) -> None:
    """A log with neither offsets nor times cannot be resumed."""
    assert cursor_for(log, timestamps=False).can_resume == can_resume
