"""What a pod and the platform tell each other: two files in a folder that both see, <data>/pods/<uid>/talk/.

    preemption.json   from the platform, before TERM: why the pod is stopped for others, and until when it may run
    saved             from the job: it has just saved its work; what counts is when the file was last written

The job owns the folder and may leave anything in it. So nothing there is ever followed or read: the notice is written
beside and put in place whole, over whatever has its name, and of `saved` only the time is taken.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

NOTICE, SAVED = "preemption.json", "saved"
# A status is written for each report. Nobody decides by less, and a job may save as often as it likes.
_REPORT_SECONDS = 10.0


def write_notice(folder: Path, text: str) -> None:
    """`OSError` when it cannot be written: the folder is gone, or the disk is full."""
    handle, scratch = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(handle, 0o644)
        os.rename(scratch, folder / NOTICE)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def saved_at(folder: Path) -> float | None:
    """When the job last saved its work, by its own word; never later than now."""
    try:
        return min(os.lstat(folder / SAVED).st_mtime, time.time())
    except OSError:
        return None


class SaveWatcher:
    """Hears of a running pod's saves, the first at once and the others not too often."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._heard: float | None = None
        self._next = float("-inf")

    def tick(self, now: float) -> float | None:
        """When it saved, if that is news. `now` is of a clock that never goes back."""
        if now < self._next:
            return None
        found = saved_at(self._folder)
        if found is None or found == self._heard:
            return None
        self._heard, self._next = found, now + _REPORT_SECONDS
        return found
