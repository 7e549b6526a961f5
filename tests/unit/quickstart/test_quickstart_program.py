"""The quickstart program as a process: its output, reports, checkpoints and exit statuses."""

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


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "aliquot.quickstart", *arguments]


def environment(**more: str) -> dict[str, str]:
    # With the path of this process, the program is the one under test, installed or not.
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)) | more


def finished(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@contextmanager
def started(folder: Path, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*arguments), cwd=folder, env=environment(**env), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line_with(process: subprocess.Popen[str], text: str) -> str:
    """The first line with the text in it."""
    assert process.stdout is not None
    return next(line for line in process.stdout if text in line)


def test_it_prints_its_progress(tmp_path: Path) -> None:
    """The log has epoch, ETA, loss, accuracy and time per step, and the program ends after its epochs."""
    done = finished(tmp_path, "--epochs", "2", *FAST)

    assert done.returncode == 0, done.stderr
    assert "Epoch 2/2" in done.stdout
    assert "Training finished after 2 epochs" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "ETA: " in line)
    assert all(word in line for word in ("loss: ", "accuracy: ", "/step"))


def test_the_log_is_not_buffered(tmp_path: Path) -> None:
    """The first step is in the log right after the start: every line is flushed."""
    with started(tmp_path) as process:
        assert first_line_with(process, "ETA: ").lstrip().startswith("1/60 ")


def test_sigterm_saves_a_checkpoint(tmp_path: Path) -> None:
    """SIGTERM in the middle of an epoch ends it with 143 and a checkpoint, and the next start resumes there."""
    with started(tmp_path) as process:
        first_line_with(process, "10/60")
        process.terminate()
        last = first_line_with(process, "SIGTERM: stopped in epoch 1, step ")
        assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert "checkpoint written" in last

    done = finished(tmp_path, "--epochs", "1", *FAST)

    step = last.split("step ")[1].split(":")[0]
    assert done.stdout.startswith(f"Resumed from {checkpoint.FILE}: epoch 1, step {step}\n")


def test_a_kill_loses_at_most_one_epoch(tmp_path: Path) -> None:
    """After a kill, no more than the current epoch is lost."""
    with started(tmp_path, *FAST) as process:
        first_line_with(process, "Epoch 4/")
        process.kill()
        process.wait(LIMIT)

    state = checkpoint.load(tmp_path)
    assert state is not None
    assert state.epoch >= 3


def test_a_preempted_job_logs_the_reason(tmp_path: Path) -> None:
    """A preempted job logs why it stops, and tells the platform that its work is saved."""
    saved, preemption = tmp_path / "saved", tmp_path / "preemption"
    with started(tmp_path, ALIQUOT_SAVED_FILE=str(saved), ALIQUOT_PREEMPTION_FILE=str(preemption)) as process:
        first_line_with(process, "10/60")
        assert not saved.exists()
        preemption.write_text('{"text": "reclaimed by b/owner"}')
        process.terminate()
        assert "(reclaimed by b/owner): checkpoint written" in first_line_with(process, "SIGTERM: stopped")
    assert saved.exists()


def test_every_checkpoint_is_reported(tmp_path: Path) -> None:
    """The platform's file is touched after the checkpoint of each epoch."""
    saved = tmp_path / "saved"
    finished(tmp_path, "--epochs", "1", *FAST, ALIQUOT_SAVED_FILE=str(saved))
    assert saved.stat().st_mtime >= (tmp_path / checkpoint.FILE).stat().st_mtime


def test_it_reports_progress(tmp_path: Path) -> None:
    """Progress and metrics are in the report file, under the names that training reporters use."""
    file = tmp_path / "report.json"

    finished(tmp_path, "--epochs", "4", *FAST, ALIQUOT_REPORT_FILE=str(file))

    report = json.loads(file.read_text())
    assert report["progress"] == 1.0
    assert report["metrics"] | {"epoch": 4, "overall_epochs": 4, "step": 240} == report["metrics"]
    assert 0 < report["metrics"]["loss"] < 2.5
    assert report["parameters"] == {"optimizer_name": "sgd"}


def test_checkpoint_folder(tmp_path: Path) -> None:
    """With a folder for checkpoints, the working folder stays clean."""
    work, checkpoints = tmp_path / "work", tmp_path / "checkpoints"
    work.mkdir()
    checkpoints.mkdir()

    finished(work, "--epochs", "1", *FAST, ALIQUOT_CHECKPOINT_DIR=str(checkpoints))

    assert (list(work.iterdir()), [file.name for file in checkpoints.iterdir()]) == ([], [checkpoint.FILE])


def test_an_unreadable_checkpoint_is_ignored(tmp_path: Path) -> None:
    """A damaged checkpoint is reported, and training starts from scratch."""
    (tmp_path / checkpoint.FILE).write_text("no checkpoint")

    done = finished(tmp_path, "--epochs", "1", *FAST)

    assert done.returncode == 0
    assert "cannot be read" in done.stdout
    assert "Epoch 1/1" in done.stdout


def test_unwritable_files_do_not_end_the_training(tmp_path: Path) -> None:
    """If checkpoints and reports cannot be written, training logs it and goes on."""
    missing = str(tmp_path / "missing")

    done = finished(
        tmp_path, "--epochs", "1", *FAST, ALIQUOT_CHECKPOINT_DIR=missing, ALIQUOT_REPORT_FILE=f"{missing}/r"
    )

    assert done.returncode == 0
    assert f"Checkpoint not written to {missing}: No such file or directory" in done.stdout
    assert done.stdout.count("progress not reported") == 1


def test_one_thread_and_lowest_priority(tmp_path: Path) -> None:
    """It runs in one thread and at the lowest priority."""
    with started(tmp_path) as process:
        first_line_with(process, "ETA: ")
        threads = list(Path(f"/proc/{process.pid}/task").iterdir())
        assert len(threads) == 1
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


@pytest.mark.parametrize(
    "arguments", [("--epochs", "0"), ("--cpu-share", "2"), ("--seed", "-1"), ("--step-seconds", "x")]
)
def test_invalid_options_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """An invalid option ends with 2, and the message names it."""
    done = finished(tmp_path, *arguments)

    assert done.returncode == 2
    assert arguments[0] in done.stderr
