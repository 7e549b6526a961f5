"""Preemption notices and save reports, in a folder in which the job may leave anything."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from aliquot.backends.local.runtimes import preemption_files


def touch(folder: Path, at: float) -> None:
    (folder / preemption_files.SAVED).touch()
    os.utime(folder / preemption_files.SAVED, (at, at))


def test_notice_over_a_link(tmp_path: Path) -> None:
    """A link that the job left under the notice's name is replaced, and its target is not touched."""
    target = tmp_path / "target"
    target.write_text("keep")
    (tmp_path / preemption_files.NOTICE).symlink_to(target)
    preemption_files.write_notice(tmp_path, "notice")
    assert (tmp_path / preemption_files.NOTICE).read_text() == "notice"
    assert (target.read_text(), sorted(os.listdir(tmp_path))) == ("keep", [preemption_files.NOTICE, "target"])


def test_a_folder_in_place_of_the_notice(tmp_path: Path) -> None:
    """A notice that cannot be written leaves no temporary file behind."""
    (tmp_path / preemption_files.NOTICE / "x").mkdir(parents=True)
    with pytest.raises(OSError, match=preemption_files.NOTICE):
        preemption_files.write_notice(tmp_path, "notice")
    assert os.listdir(tmp_path) == [preemption_files.NOTICE]


def test_notice_can_be_read_by_the_job(tmp_path: Path) -> None:
    """Every user may read it."""
    preemption_files.write_notice(tmp_path, "notice")
    assert (tmp_path / preemption_files.NOTICE).stat().st_mode & 0o777 == 0o644


def test_saved_in_the_future(tmp_path: Path) -> None:
    """A time in the future counts as now."""
    touch(tmp_path, time.time() + 9999)
    saved = preemption_files.saved_at(tmp_path)
    assert saved is not None
    assert saved <= time.time()


def test_not_saved(tmp_path: Path) -> None:
    """Without a report there is no time, also where there is no folder."""
    assert preemption_files.saved_at(tmp_path) is None
    assert preemption_files.saved_at(tmp_path / "gone") is None


def test_saves_are_reported_at_once_and_then_seldom(tmp_path: Path) -> None:
    """The first save is reported at once, later ones after a pause and only the newest; none is reported twice."""
    watcher = preemption_files.SaveWatcher(tmp_path)
    reported = []
    for now, saved in ((0, None), (1, 100.0), (2, 101.0), (10, 102.0), (11, 103.0), (30, 103.0), (31, 104.0)):
        if saved is not None:
            touch(tmp_path, saved)
        reported.append(watcher.poll(now))
    assert reported == [None, 100, None, None, 103, None, 104]
