"""The two files by which a pod and the platform exchange preemption notices, in <data>/pods/<uid>/talk/.

    preemption.json   written by the platform before TERM: why the pod is preempted, and until when it may run
    saved             written by the job when it has saved its work; only the time of the last write counts

The job owns the folder and may leave anything in it. So nothing in it is ever followed or read: the notice is written
to a temporary file and renamed over whatever has its name, and of `saved` only the modification time is used.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

NOTICE, SAVED = "preemption.json", "saved"
# Each report is a write of the pod's status. Decisions do not need a finer time, and a job may save as often as it
# likes.
_REPORT_SECONDS = 10.0


def write_notice(folder: Path, text: str) -> None:
    """`OSError` when it cannot be written: the folder is gone, or the disk is full."""
    handle, temporary = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(handle, 0o644)
        os.rename(temporary, folder / NOTICE)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def saved_at(folder: Path) -> float | None:
    """When the job last reported that it saved its work; never later than now."""
    try:
        return min(os.lstat(folder / SAVED).st_mtime, time.time())
    except OSError:
        return None


class SaveWatcher:
    """Watches a running pod for saves: the first is reported at once, later ones at most every ten seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: float | None = None
        self._next_report = float("-inf")

    def poll(self, now: float) -> float | None:
        """The time of a save that was not reported yet, if any. `now` is from a monotonic clock."""
        if now < self._next_report:
            return None
        saved = saved_at(self._folder)
        if saved is None or saved == self._reported:
            return None
        self._reported, self._next_report = saved, now + _REPORT_SECONDS
        return saved
