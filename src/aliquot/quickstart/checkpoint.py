"""Checkpoints: the course in one file, replaced whole; a kill at any moment leaves the old one or the new one."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from aliquot.quickstart.network import Network
from aliquot.quickstart.training_state import STEPS, Course

FILE = "quickstart-checkpoint.npz"


class Unreadable(Exception):
    """There is a file, but it is no checkpoint of this program."""


def save(folder: Path, course: Course) -> None:
    """`OSError` when it cannot be written; the checkpoint before it is then still there."""
    scratch = folder / f".{FILE}.{os.getpid()}"
    numbers = np.array([course.seed, course.epoch, course.step, course.right], dtype=np.int64)
    arrays: dict[str, Any] = {**course.network.arrays, "numbers": numbers, "losses": np.float64(course.losses)}
    try:
        with scratch.open("wb") as out:
            np.savez(out, **arrays)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(folder / FILE)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def load(folder: Path) -> Course | None:
    """The course to take up again; None where there is no checkpoint."""
    try:
        with (folder / FILE).open("rb") as file, zipfile.ZipFile(file):
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as exc:
        raise Unreadable(str(exc) or type(exc).__name__) from exc
    return _course(arrays)


def _course(arrays: dict[str, Any]) -> Course:
    wanted = {name: value.shape for name, value in Network.fresh(0).arrays.items()}
    if {name: value.shape for name, value in arrays.items()} != wanted | {"numbers": (4,), "losses": ()}:
        raise Unreadable("made by another version")
    seed, epoch, step, right = map(int, arrays.pop("numbers"))
    losses = float(arrays.pop("losses"))
    if min(seed, epoch) < 0 or not 0 <= step < STEPS:
        raise Unreadable(f"epoch {epoch}, step {step}")
    return Course(Network(arrays), seed, epoch, step, losses, right)
