"""What people and the platform are told, and what the platform tells: lines in the manner of Keras, and small files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aliquot.quickstart.network import RATE
from aliquot.quickstart.training_state import BATCH, STEPS, Course

_WIDTH = 30  # of the bar


@dataclass(frozen=True, slots=True)
class Files:
    """Where the program and the platform talk; None where the platform has not said."""

    report: Path | None = None  # how far it is
    saved: Path | None = None  # written whenever the work is saved
    preemption: Path | None = None  # there when it is stopped for others

    @classmethod
    def named(cls, env: Mapping[str, str]) -> Self:
        names = ("ALIQUOT_REPORT_FILE", "ALIQUOT_SAVED_FILE", "ALIQUOT_PREEMPTION_FILE")
        return cls(*(Path(env[name]) if env.get(name) else None for name in names))


def why_stopped(notice: Path | None) -> str:
    """Why the platform stops it for others; empty where it does not, or has not said."""
    if notice is None:
        return ""
    try:
        return str(json.loads(notice.read_text())["text"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def line(course: Course, per_step: float) -> str:
    """How the epoch stands; `per_step` is the seconds that a step has taken."""
    left = (STEPS - course.step) * per_step
    bar = _bar(course.step)
    return f"{course.step:2d}/{STEPS} [{bar}] - ETA: {_time(left)} - {_figures(course)} - {_step(per_step)}"


def last_line(course: Course, elapsed: float, per_step: float, tested: float) -> str:
    """How the epoch ended, and how well it does on points it has not seen."""
    end = f"{STEPS}/{STEPS} [{_bar(STEPS)}] - {_time(elapsed)} {_step(per_step)}"
    return f"{end} - {_figures(course)} - val_accuracy: {tested:.4f}"


def write_report(path: Path, course: Course, epochs: int) -> None:
    """Progress and metrics, under the names that reporters of training use; replaced whole."""
    report = {
        "progress": round(min((course.epoch + course.step / STEPS) / epochs, 1), 4),
        "metrics": {
            "epoch": course.epoch + (course.step > 0),
            "overall_epochs": epochs,
            "step": course.epoch * STEPS + course.step,
            "loss": round(course.loss, 4),
            "accuracy": round(course.accuracy, 4),
            "learning_rate": RATE,
            "batch_size": BATCH,
            "number_of_layers": 2,
        },
        "parameters": {"optimizer_name": "sgd"},
    }
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(report) + "\n")
    scratch.replace(path)


def _figures(course: Course) -> str:
    return f"loss: {course.loss:.4f} - accuracy: {course.accuracy:.4f}"


def _bar(step: int) -> str:
    done = step * _WIDTH // STEPS
    return "=" * _WIDTH if done == _WIDTH else ("=" * done + ">").ljust(_WIDTH, ".")


def _step(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms/step" if seconds >= 0.001 else f"{seconds * 1e6:.0f}us/step"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest}s"
