"""The training program: options, signals, pace, and the training loop.

TERM and INT are blocked, and the program waits for them in the pause before each step. So a signal never interrupts a
step, and every checkpoint is of a complete step. It also works as process 1 of a container, where the kernel drops
signals that have no handler.
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
from aliquot.quickstart.training_state import BATCH, STEPS, TESTS, TrainingState

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
_MAX_PAUSE = 0.5  # seconds between two checks for signals
_STEPS_PER_LINE = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """Slows the training down."""

    # The least time from one step to the next.
    step_seconds: float
    # The largest share of a core, averaged over each step and its pause.
    cpu_share: float

    def pause(self, elapsed: float, cpu: float) -> float:
        """How long to pause after a step that took `elapsed` seconds and `cpu` seconds of CPU time."""
        return max(self.step_seconds - elapsed, cpu / self.cpu_share - elapsed, 0.0)


class _Stopped(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Training:
    def __init__(
        self, state: TrainingState, epochs: int, pace: Pace, folder: Path, files: progress.PlatformFiles
    ) -> None:
        self._state = state
        self._epochs = epochs
        self._pace = pace
        self._folder = folder
        self._files = files
        self._report = files.report
        self._pause = 0.0  # seconds to pause before the next step
        self._train, self._test = points(state.seed, STEPS * BATCH, TESTS)

    def run(self) -> int:
        """Trains to the last epoch or until a signal; returns the exit status."""
        try:
            while self._state.epoch < self._epochs:
                self._train_epoch()
        except _Stopped as stopped:
            name = signal.Signals(stopped.number).name
            reason = progress.preemption_reason(self._files.preemption)
            outcome = self._save_checkpoint() or f"checkpoint written to {self._folder / checkpoint.FILE}"
            position = f"in epoch {self._state.epoch + 1}, step {self._state.step}"
            _print(f"{name}: stopped {position}{f' ({reason})' if reason else ''}: {outcome}")
            return 128 + stopped.number
        val_accuracy = self._state.network.accuracy(self._test)
        _print(f"Training finished after {self._state.epoch} epochs - val_accuracy: {val_accuracy:.4f}")
        return 0

    def _train_epoch(self) -> None:
        state = self._state
        _print(f"Epoch {state.epoch + 1}/{self._epochs}")
        started, first = time.monotonic(), state.step
        while state.step < STEPS:
            self._train_step()
            step_seconds = (time.monotonic() - started) / (state.step - first)
            if state.step - first == 1 or (state.step % _STEPS_PER_LINE == 0 and state.step < STEPS):
                _print(progress.step_line(state, step_seconds))
                self._write_report()
        val_accuracy = state.network.accuracy(self._test)
        _print(progress.epoch_line(state, time.monotonic() - started, step_seconds, val_accuracy))
        self._write_report()
        state.end_epoch()
        problem = self._save_checkpoint()
        if problem:
            _print(problem)

    def _train_step(self) -> None:
        """Pauses, and then takes a step. The pause comes first because signals are handled in it."""
        _pause_for_signals(self._pause)
        clock, cpu = time.monotonic(), time.process_time()
        self._state.advance(self._train)
        self._pause = self._pace.pause(time.monotonic() - clock, time.process_time() - cpu)

    def _save_checkpoint(self) -> str:
        """Returns what went wrong; empty if the checkpoint was saved. A full disk must not end hours of work."""
        try:
            checkpoint.save(self._folder, self._state)
        except OSError as exc:
            return f"Checkpoint not written to {self._folder}: {exc.strerror or exc}"
        if self._files.saved is not None:
            with contextlib.suppress(OSError):  # the platform then only overestimates the lost work
                self._files.saved.touch()
        return ""

    def _write_report(self) -> None:
        if self._report is None:
            return
        try:
            progress.write_report(self._report, self._state, self._epochs)
        except OSError as exc:
            _print(f"progress not reported to {self._report}: {exc.strerror or exc}")
            self._report = None  # do not repeat the message


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    os.nice(19)  # interactive use of the machine goes first
    folder = Path(os.environ.get("ALIQUOT_CHECKPOINT_DIR") or ".")
    pace = Pace(options.step_seconds, options.cpu_share)
    state = _resumed(folder) or TrainingState(Network.fresh(options.seed), options.seed)
    return Training(state, options.epochs, pace, folder, progress.PlatformFiles.from_environment(os.environ)).run()


def _resumed(folder: Path) -> TrainingState | None:
    try:
        state = checkpoint.load(folder)
    except checkpoint.Unreadable as exc:
        _print(f"Checkpoint {folder / checkpoint.FILE} cannot be read ({exc}): starting from scratch")
        return None
    if state is not None:
        _print(f"Resumed from {folder / checkpoint.FILE}: epoch {state.epoch + 1}, step {state.step}")
    return state


def _pause_for_signals(seconds: float) -> None:
    """Raises `_Stopped` if a signal has arrived or arrives during the pause."""
    until = time.monotonic() + seconds
    while True:
        left = max(until - time.monotonic(), 0)
        received = signal.sigtimedwait(_STOP_SIGNALS, min(left, _MAX_PAUSE))
        if received is not None:
            raise _Stopped(received.si_signo)
        if left <= _MAX_PAUSE:
            return


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # so that `logs -f` shows it now


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="quickstart", description="Trains a small network, slowly.")
    parser.add_argument("--epochs", type=_positive, default=5000, help="epochs to train (default: about a day)")
    parser.add_argument("--seed", type=_natural, default=0, help="seed of the data set and of the training")
    parser.add_argument("--step-seconds", type=_seconds, default=0.25, help="least time from one step to the next")
    parser.add_argument("--cpu-share", type=_share, default=0.025, help="largest share of a core, from 0.001 to 1")
    return parser.parse_args(arguments)


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
