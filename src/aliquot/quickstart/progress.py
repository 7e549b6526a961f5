"""Progress for users and for the platform: log lines in the style of Keras, and the files shared with the platform."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aliquot.quickstart.network import RATE
from aliquot.quickstart.training_state import BATCH, STEPS, TrainingState

_BAR_WIDTH = 30


@dataclass(frozen=True, slots=True)
class PlatformFiles:
    """Files shared with the platform; None for those that the platform has not named."""

    report: Path | None = None  # progress and metrics
    saved: Path | None = None  # touched after every checkpoint
    preemption: Path | None = None  # exists once the job is preempted

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        names = ("ALIQUOT_REPORT_FILE", "ALIQUOT_SAVED_FILE", "ALIQUOT_PREEMPTION_FILE")
        return cls(*(Path(env[name]) if env.get(name) else None for name in names))


def preemption_reason(file: Path | None) -> str:
    """Why the platform preempts the job; empty if it does not, or gives no reason."""
    if file is None:
        return ""
    try:
        return str(json.loads(file.read_text())["text"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def step_line(state: TrainingState, step_seconds: float) -> str:
    """The log line in the middle of an epoch; `step_seconds` is the mean time of a step."""
    left = (STEPS - state.step) * step_seconds
    bar, per_step = _bar(state.step), _per_step_text(step_seconds)
    return f"{state.step:2d}/{STEPS} [{bar}] - ETA: {_time_text(left)} - {_metrics_text(state)} - {per_step}"


def epoch_line(state: TrainingState, elapsed: float, step_seconds: float, val_accuracy: float) -> str:
    """The log line at the end of an epoch, with the accuracy on the test set."""
    end = f"{STEPS}/{STEPS} [{_bar(STEPS)}] - {_time_text(elapsed)} {_per_step_text(step_seconds)}"
    return f"{end} - {_metrics_text(state)} - val_accuracy: {val_accuracy:.4f}"


def write_report(path: Path, state: TrainingState, epochs: int) -> None:
    """Writes progress and metrics, under the names that training reporters use. The file is replaced atomically."""
    report = {
        "progress": round(min((state.epoch + state.step / STEPS) / epochs, 1), 4),
        "metrics": {
            "epoch": state.epoch + (state.step > 0),
            "overall_epochs": epochs,
            "step": state.epoch * STEPS + state.step,
            "loss": round(state.loss, 4),
            "accuracy": round(state.accuracy, 4),
            "learning_rate": RATE,
            "batch_size": BATCH,
            "number_of_layers": 2,
        },
        "parameters": {"optimizer_name": "sgd"},
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(report) + "\n")
    temporary.replace(path)


def _metrics_text(state: TrainingState) -> str:
    return f"loss: {state.loss:.4f} - accuracy: {state.accuracy:.4f}"


def _bar(step: int) -> str:
    done = step * _BAR_WIDTH // STEPS
    return "=" * _BAR_WIDTH if done == _BAR_WIDTH else ("=" * done + ">").ljust(_BAR_WIDTH, ".")


def _per_step_text(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms/step" if seconds >= 0.001 else f"{seconds * 1e6:.0f}us/step"


def _time_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest}s"
