"""Checkpoints: the training state in one file, replaced atomically. A kill at any moment leaves the old or the new
one."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from aliquot.quickstart.network import Network
from aliquot.quickstart.training_state import STEPS, TrainingState

FILE = "quickstart-checkpoint.npz"


class Unreadable(Exception):
    """The file exists, but is not a checkpoint of this program."""


def save(folder: Path, state: TrainingState) -> None:
    """Raises `OSError` if the checkpoint cannot be written; the previous one is then still there."""
    temporary = folder / f".{FILE}.{os.getpid()}"
    numbers = np.array([state.seed, state.epoch, state.step, state.correct], dtype=np.int64)
    arrays: dict[str, Any] = {**state.network.arrays, "numbers": numbers, "losses": np.float64(state.losses)}
    try:
        with temporary.open("wb") as out:
            np.savez(out, **arrays)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(folder / FILE)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(folder: Path) -> TrainingState | None:
    """The saved state; None if there is no checkpoint."""
    try:
        with (folder / FILE).open("rb") as file, zipfile.ZipFile(file):
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as exc:
        raise Unreadable(str(exc) or type(exc).__name__) from exc
    return _state_from(arrays)


def _state_from(arrays: dict[str, Any]) -> TrainingState:
    expected = {name: value.shape for name, value in Network.fresh(0).arrays.items()}
    if {name: value.shape for name, value in arrays.items()} != expected | {"numbers": (4,), "losses": ()}:
        raise Unreadable("made by another version")
    seed, epoch, step, correct = map(int, arrays.pop("numbers"))
    losses = float(arrays.pop("losses"))
    if min(seed, epoch) < 0 or not 0 <= step < STEPS:
        raise Unreadable(f"epoch {epoch}, step {step}")
    return TrainingState(Network(arrays), seed, epoch, step, losses, correct)
