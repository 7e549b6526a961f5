"""The quickstart program as a process: what it prints, reports and leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aliquot.quickstart import checkpoint

FAST = ("--step-seconds", "0", "--cpu-share", "1")
LIMIT = 60  # seconds; far more than any of it takes


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "aliquot.quickstart", *words]


def environment(**more: str) -> dict[str, str]:
    # The parent's own path: the program is the one under test, installed or not.
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)) | more


def finished(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=LIMIT, check=False
    )


@contextmanager
def started(folder: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*words), cwd=folder, env=environment(**env), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], text: str) -> str:
    """The first line with the text in it."""
    assert process.stdout is not None
    return next(line for line in process.stdout if text in line)


def test_it_prints_what_people_look_for(tmp_path: Path) -> None:
    """Epoch, ETA, loss, accuracy and time per step are in the log, and it ends after its epochs."""
    done = finished(tmp_path, "--epochs", "2", *FAST)

    assert done.returncode == 0, done.stderr
    assert "Epoch 2/2" in done.stdout
    assert "Training finished after 2 epochs" in done.stdout
    told = next(line for line in done.stdout.splitlines() if "ETA: " in line)
    assert all(word in told for word in ("loss: ", "accuracy: ", "/step"))


def test_its_log_is_there_at_once(tmp_path: Path) -> None:
    """Whoever looks right after the start sees a first step: every line is passed on as it is made."""
    with started(tmp_path) as process:
        assert until(process, "ETA: ").lstrip().startswith("1/60 ")


def test_told_to_stop_it_keeps_its_work(tmp_path: Path) -> None:
    """TERM ends it with 143 in the middle of an epoch, with a checkpoint; the next start goes on from there."""
    with started(tmp_path) as process:
        until(process, "10/60")
        process.terminate()
        last = until(process, "SIGTERM: stopped in epoch 1, step ")
        assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert "checkpoint written" in last

    done = finished(tmp_path, "--epochs", "1", *FAST)

    step = last.split("step ")[1].split(":")[0]
    assert done.stdout.startswith(f"Resumed from {checkpoint.FILE}: epoch 1, step {step}\n")


def test_killed_it_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    """After a kill, no more than the epoch under way is lost."""
    with started(tmp_path, *FAST) as process:
        until(process, "Epoch 4/")
        process.kill()
        process.wait(LIMIT)

    course = checkpoint.load(tmp_path)
    assert course is not None
    assert course.epoch >= 3


def test_stopped_for_others_it_says_why(tmp_path: Path) -> None:
    """With a notice it says why it stops, and the platform can see that its work is saved."""
    saved, notice = tmp_path / "saved", tmp_path / "notice"
    with started(tmp_path, ALIQUOT_SAVED_FILE=str(saved), ALIQUOT_PREEMPTION_FILE=str(notice)) as process:
        until(process, "10/60")
        assert not saved.exists()
        notice.write_text('{"text": "reclaimed by b/owner"}')
        process.terminate()
        assert "(reclaimed by b/owner): checkpoint written" in until(process, "SIGTERM: stopped")
    assert saved.exists()


def test_every_checkpoint_is_told(tmp_path: Path) -> None:
    """Each epoch's checkpoint is told to the platform."""
    saved = tmp_path / "saved"
    finished(tmp_path, "--epochs", "1", *FAST, ALIQUOT_SAVED_FILE=str(saved))
    assert saved.stat().st_mtime >= (tmp_path / checkpoint.FILE).stat().st_mtime


def test_it_reports_progress(tmp_path: Path) -> None:
    """Progress and metrics are in the file it was told of, under the names that reporters use."""
    file = tmp_path / "report.json"

    finished(tmp_path, "--epochs", "4", *FAST, ALIQUOT_REPORT_FILE=str(file))

    report = json.loads(file.read_text())
    assert report["progress"] == 1.0
    assert report["metrics"] | {"epoch": 4, "overall_epochs": 4, "step": 240} == report["metrics"]
    assert 0 < report["metrics"]["loss"] < 2.5
    assert report["parameters"] == {"optimizer_name": "sgd"}


def test_checkpoints_go_where_they_are_wanted(tmp_path: Path) -> None:
    """With a folder for checkpoints, the working folder stays clean."""
    work, kept = tmp_path / "work", tmp_path / "kept"
    work.mkdir()
    kept.mkdir()

    finished(work, "--epochs", "1", *FAST, ALIQUOT_CHECKPOINT_DIR=str(kept))

    assert (list(work.iterdir()), [each.name for each in kept.iterdir()]) == ([], [checkpoint.FILE])


def test_a_checkpoint_it_cannot_read_is_not_the_end(tmp_path: Path) -> None:
    """A damaged checkpoint is said to be one, and training starts anew."""
    (tmp_path / checkpoint.FILE).write_text("no checkpoint")

    done = finished(tmp_path, "--epochs", "1", *FAST)

    assert done.returncode == 0
    assert "cannot be read" in done.stdout
    assert "Epoch 1/1" in done.stdout


def test_without_room_for_checkpoints_it_goes_on(tmp_path: Path) -> None:
    """Where nothing can be written, training says so and goes on."""
    nowhere = str(tmp_path / "gone")

    done = finished(
        tmp_path, "--epochs", "1", *FAST, ALIQUOT_CHECKPOINT_DIR=nowhere, ALIQUOT_REPORT_FILE=f"{nowhere}/r"
    )

    assert done.returncode == 0
    assert f"Checkpoint not written to {nowhere}: No such file or directory" in done.stdout
    assert done.stdout.count("progress not reported") == 1


def test_it_is_a_quiet_neighbour(tmp_path: Path) -> None:
    """It runs in one thread and at the lowest priority."""
    with started(tmp_path) as process:
        until(process, "ETA: ")
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        assert len(threads) == 1
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


@pytest.mark.parametrize("words", [("--epochs", "0"), ("--cpu-share", "2"), ("--seed", "-1"), ("--step-seconds", "x")])
def test_wrong_options_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """An option that makes no sense ends with 2 and says what would."""
    done = finished(tmp_path, *words)

    assert done.returncode == 2
    assert words[0] in done.stderr
