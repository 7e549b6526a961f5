"""The training program: options, signals, pace, and the loop that ties the parts together.

TERM and INT are blocked and looked for in the pause before each step. So a step is never cut in two, the checkpoint
is of a whole step, and it works as process 1 of a container too, where signals without a handler are lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aliquot.quickstart import checkpoint, progress
from aliquot.quickstart.network import Network, points
from aliquot.quickstart.training_state import BATCH, STEPS, TESTS, Course

_STOPS = {signal.SIGTERM, signal.SIGINT}
_LONGEST_PAUSE = 0.5  # seconds; whoever says TERM has an answer within one
_STEPS_PER_LINE = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly it goes."""

    # Seconds from one step to the next.
    step_seconds: float
    # Most of a core, averaged from step to step.
    cpu_share: float

    def pause(self, elapsed: float, cpu: float) -> float:
        """How long to rest after a step that took so long and cost so much of a core."""
        return max(self.step_seconds - elapsed, cpu / self.cpu_share - elapsed, 0.0)


class _Stopped(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Training:
    def __init__(self, course: Course, epochs: int, pace: Pace, folder: Path, files: progress.Files) -> None:
        self._course = course
        self._epochs = epochs
        self._pace = pace
        self._folder = folder
        self._files = files
        self._report = files.report
        self._owed = 0.0  # seconds of rest
        self._train, self._test = points(course.seed, STEPS * BATCH, TESTS)

    def run(self) -> int:
        """Train to the last epoch, or until told to stop; the exit status."""
        try:
            while self._course.epoch < self._epochs:
                self._one_epoch()
        except _Stopped as stopped:
            name = signal.Signals(stopped.number).name
            why = progress.why_stopped(self._files.preemption)
            kept = self._keep() or f"checkpoint written to {self._folder / checkpoint.FILE}"
            place = f"in epoch {self._course.epoch + 1}, step {self._course.step}"
            _say(f"{name}: stopped {place}{f' ({why})' if why else ''}: {kept}")
            return 128 + stopped.number
        tested = self._course.network.accuracy(self._test)
        _say(f"Training finished after {self._course.epoch} epochs - val_accuracy: {tested:.4f}")
        return 0

    def _one_epoch(self) -> None:
        course = self._course
        _say(f"Epoch {course.epoch + 1}/{self._epochs}")
        started, first = time.monotonic(), course.step
        while course.step < STEPS:
            self._one_step()
            per_step = (time.monotonic() - started) / (course.step - first)
            if course.step - first == 1 or (course.step % _STEPS_PER_LINE == 0 and course.step < STEPS):
                _say(progress.line(course, per_step))
                self._tell()
        tested = course.network.accuracy(self._test)
        _say(progress.last_line(course, time.monotonic() - started, per_step, tested))
        self._tell()
        course.turn()
        problem = self._keep()
        if problem:
            _say(problem)

    def _one_step(self) -> None:
        """Rest as long as the step before has earned, and then take one: whoever stops us does it between two."""
        _rest(self._owed)
        clock, cpu = time.monotonic(), time.process_time()
        self._course.advance(self._train)
        self._owed = self._pace.pause(time.monotonic() - clock, time.process_time() - cpu)

    def _keep(self) -> str:
        """Write a checkpoint and say so; what went wrong, if anything did. A full disk must not end hours of work."""
        try:
            checkpoint.save(self._folder, self._course)
        except OSError as exc:
            return f"Checkpoint not written to {self._folder}: {exc.strerror or exc}"
        if self._files.saved is not None:
            with contextlib.suppress(OSError):  # then the platform takes more for lost than is, and that is all
                self._files.saved.touch()
        return ""

    def _tell(self) -> None:
        if self._report is None:
            return
        try:
            progress.write_report(self._report, self._course, self._epochs)
        except OSError as exc:
            _say(f"progress not reported to {self._report}: {exc.strerror or exc}")
            self._report = None  # once is enough


def main(words: Sequence[str]) -> int:
    options = _options(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    os.nice(19)  # whoever sits at the machine goes first
    folder = Path(os.environ.get("ALIQUOT_CHECKPOINT_DIR") or ".")
    pace = Pace(options.step_seconds, options.cpu_share)
    course = _resumed(folder) or Course(Network.fresh(options.seed), options.seed)
    return Training(course, options.epochs, pace, folder, progress.Files.named(os.environ)).run()


def _resumed(folder: Path) -> Course | None:
    try:
        course = checkpoint.load(folder)
    except checkpoint.Unreadable as exc:
        _say(f"Checkpoint {folder / checkpoint.FILE} cannot be read ({exc}): starting anew")
        return None
    if course is not None:
        _say(f"Resumed from {folder / checkpoint.FILE}: epoch {course.epoch + 1}, step {course.step}")
    return course


def _rest(seconds: float) -> None:
    """Pause, and end when told to stop before or during it."""
    until = time.monotonic() + seconds
    while True:
        left = max(until - time.monotonic(), 0)
        found = signal.sigtimedwait(_STOPS, min(left, _LONGEST_PAUSE))
        if found is not None:
            raise _Stopped(found.si_signo)
        if left <= _LONGEST_PAUSE:
            return


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # a log that is followed shows it now


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart", description="Trains a small network, slowly.")
    parser.add_argument("--epochs", type=_positive, default=5000, help="end after so many (default: a day's worth)")
    parser.add_argument("--seed", type=_natural, default=0, help="another seed, another course")
    parser.add_argument("--step-seconds", type=_seconds, default=0.25, help="time from step to step")
    parser.add_argument("--cpu-share", type=_share, default=0.025, help="most of a core, from 0.001 to 1")
    return parser.parse_args(words)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def _natural(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {text}")
    return int(text)


def _seconds(text: str) -> float:
    if not 0 <= float(text) <= 60:
        raise argparse.ArgumentTypeError(f"must be from 0 to 60, not {text}")
    return float(text)


def _share(text: str) -> float:
    if not 0.001 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0.001 to 1, not {text}")
    return float(text)
