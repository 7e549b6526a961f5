"""What people and the platform are told: lines in the manner of Keras, and a small JSON file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from aliquot.quickstart.course import BATCH, STEPS, Course
from aliquot.quickstart.network import RATE

_WIDTH = 30  # of the bar


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
