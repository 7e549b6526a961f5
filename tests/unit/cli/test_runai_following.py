"""A followed log is one log, whatever happens to the connection."""

from __future__ import annotations

import itertools
import random

import pytest

from aliquot.client.following import Seam

LINES = [
    b"2026-01-31T12:00:00.000001Z one\n",
    b"2026-01-31T12:00:00.5Z two words\n",
    b"2026-01-31T12:00:00.5Z same moment\n",
    b"2026-01-31T12:00:00.5Z same moment\n",
    b"2026-01-31T12:00:01Z \n",
    b"2026-01-31T12:00:02.123456789Z 2026-01-31T11:00:00Z its own time\n",
    b"2026-01-31T12:00:03Z last",
]
LOG = b"".join(LINES)
SHOWN = b"".join(line.partition(b" ")[2] for line in LINES)


def fed(seam: Seam, data: bytes, size: int) -> bytes:
    return b"".join(seam.feed(data[at : at + size]) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_timestamps_are_taken_off(size: int) -> None:
    assert fed(Seam(), LOG, size) == SHOWN


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_timestamps_stay_where_they_are_wanted(size: int) -> None:
    assert fed(Seam(timestamps=True), LOG, size) == LOG


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_break_anywhere_loses_and_repeats_nothing(timestamps: bool) -> None:
    """After each break the log comes again, whole."""
    for cut in range(len(LOG) + 1):
        seam = Seam(timestamps=timestamps)
        out = seam.feed(LOG[:cut])
        seam.restart()
        out += seam.feed(LOG)
        assert out == (LOG if timestamps else SHOWN), cut


def test_many_breaks() -> None:
    """Also when each repeat begins somewhere else."""
    chance = random.Random(4)
    for _ in range(200):
        seam, out, reached = Seam(), b"", 0
        starts = list(itertools.accumulate(map(len, LINES), initial=0))[:-1]
        while reached < len(LOG):
            known = [start for start in starts if start <= reached]
            # At least the last line comes again, with all of its moment; more is possible.
            begin = min(chance.choice(known), starts[1] if starts[1] <= reached < starts[4] + 1 else known[-1])
            reached = max(reached, chance.randint(begin, len(LOG)))
            out += seam.feed(LOG[begin:reached])
            seam.restart()
        assert out == SHOWN


def test_lines_without_a_time_are_shown() -> None:
    """A server that sends none loses its user nothing."""
    assert Seam().feed(b"plain text\nmore\n") == b"plain text\nmore\n"
