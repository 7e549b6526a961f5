"""Reading a log while its first bytes arrive."""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.backends.local.runtimes import log_file
from aliquot.streams import LogOptions


def test_first_lines_are_not_skipped(tmp_path: Path) -> None:
    """A reader that opens an empty log while its first bytes are written reads it from the beginning."""
    for number in range(200):
        log = tmp_path / f"log{number}"
        log.touch()
        writer = os.fork()
        if writer == 0:
            os.write(os.open(log, os.O_WRONLY | os.O_APPEND), b"0\n1\n")
            os._exit(0)
        starts = set()
        while os.waitpid(writer, os.WNOHANG)[0] == 0:
            starts.add(log_file.start(log, LogOptions()))
        assert starts <= {0}
