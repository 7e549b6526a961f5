"""A followed log without offsets is one log too: lines are found again by their times."""

from __future__ import annotations

import pytest

from aliquot.client.log_following import TimestampCursor, cursor_for
from aliquot.streams import Log, LogOptions
from aliquot.units import timestamp

# Two lines of one time; one that is written after a later one; an empty one; one with a time of its own.
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
    """What the kubelet sends: every line from a second on."""
    lines = [(stamp, text) for stamp, text in LINES if since is None or timestamp(stamp) >= since]
    return b"".join(stamp.encode() + b" " + text for stamp, text in lines)


def shown(timestamps: bool) -> bytes:
    return b"".join((stamp.encode() + b" " if timestamps else b"") + text for stamp, text in LINES)


def fed(times: TimestampCursor, data: bytes, size: int) -> bytes:
    times.begin_stream(None)
    return b"".join(times.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_break_anywhere_loses_and_repeats_nothing(timestamps: bool, size: int) -> None:
    """Also in the middle of a time, a line or a letter, and when the next stream breaks too."""
    whole = stream()
    for cut in range(len(whole) + 1):
        times = TimestampCursor(timestamps=timestamps)
        out = fed(times, whole[:cut], size)
        second = stream(times.resume_options(LogOptions(), follow=True).resume)
        out += fed(times, second[: len(second) // 2], size)
        out += fed(times, stream(times.resume_options(LogOptions(), follow=True).resume), size)
        assert out == shown(timestamps), cut


def test_what_is_asked_again() -> None:
    """From a second before the newest line on, and no longer by the number or age of lines."""
    times, options = TimestampCursor(), LogOptions(tail_lines=3, since=7.0, pod_uid="u")
    assert times.resume_options(options, follow=True) == LogOptions(True, 3, 7.0, pod_uid="u", line_times=True)
    fed(times, stream(), 1000)
    asked = times.resume_options(options, follow=False)
    assert asked == LogOptions(line_times=True, resume=timestamp("2026-01-31T12:00:05Z"), pod_uid="u")


def test_lines_before_the_first() -> None:
    """Lines of before the last ones that were asked for stay out when their second comes again."""
    times = TimestampCursor()
    assert fed(times, stream()[len(LINES[0][0]) + 5 :], 1000).startswith(b"two words")
    times = TimestampCursor()
    whole = stream().splitlines(keepends=True)
    out = fed(times, whole[2], 1000) + fed(times, b"".join(whole[:4]), 1000)
    assert out == b"two words\ntwo words\nlater\n"


def test_memory_stays_small() -> None:
    """Only the last two seconds are remembered, however long a log is."""
    times = TimestampCursor()
    for second in range(50):
        times.feed(b"".join(b"2026-01-31T12:00:%02d.%09dZ x\n" % (second, n) for n in range(10)))
    assert sum(len(each) for each in times._seen.values()) == 20


@pytest.mark.parametrize("log, known", [(Log(iter(()), has_line_times=True), True), (Log(iter(())), False)])  # type: ignore[arg-type]
def test_which_place(log: Log, known: bool) -> None:
    """A log that says neither offsets nor times cannot be gone on with."""
    assert cursor_for(log, timestamps=False).can_resume == known
