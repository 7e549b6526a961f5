"""The training of the quickstart image is real: it learns, it is deterministic, and it resumes from checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aliquot.quickstart import checkpoint, progress
from aliquot.quickstart.network import Network, Points, points
from aliquot.quickstart.program import Pace
from aliquot.quickstart.training_state import BATCH, STEPS, TESTS, TrainingState


def fresh(seed: int = 0) -> TrainingState:
    return TrainingState(Network.fresh(seed), seed)


def trained(state: TrainingState, steps: int) -> TrainingState:
    train, _ = points(state.seed, STEPS * BATCH, TESTS)
    for _ in range(steps):
        state.advance(train)
        if state.step == STEPS:
            state.end_epoch()
    return state


def test_loss_falls_and_accuracy_rises() -> None:
    """Each of the first epochs ends with a lower loss and a higher accuracy than the one before."""
    state = fresh()
    train, _ = points(0, STEPS * BATCH, TESTS)
    losses, accuracies = [], []
    for _ in range(8):
        for _ in range(STEPS):
            state.advance(train)
        losses.append(state.loss)
        accuracies.append(state.accuracy)
        state.end_epoch()

    assert losses == sorted(losses, reverse=True)
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 0.3 < 0.7 < accuracies[-1]


def test_it_generalizes() -> None:
    """After some epochs it classifies most points of the test set correctly; before, it guesses."""
    _, test = points(0, STEPS * BATCH, TESTS)

    assert fresh().network.accuracy(test) < 0.2
    assert trained(fresh(), 20 * STEPS).network.accuracy(test) > 0.8


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """The gradient of a step agrees with a numerical one."""
    train, _ = points(3, 32, 1)
    network = Network.fresh(3)
    before = {name: value.copy() for name, value in network.arrays.items()}
    network.learn(train)
    slope = network.arrays["m_w2"][5, 2]  # momentum was zero, so it is the slope of the first step

    assert slope == pytest.approx(measured(before, train, "w2", (5, 2)), rel=0.05, abs=1e-4)


def measured(arrays: dict[str, np.ndarray], batch: Points, name: str, index: tuple[int, int]) -> float:
    """The slope of the loss along one weight, by a finite difference."""
    losses = []
    for change in (0.01, -0.01):
        changed = Network({key: value.copy() for key, value in arrays.items()})
        changed.arrays[name][index] += change
        losses.append(changed.learn(batch)[0])
    return (losses[0] - losses[1]) / 0.02


def test_the_same_seed_gives_the_same_training() -> None:
    """Two runs with the same seed agree to the last bit; another seed gives another result."""
    first, second, other = trained(fresh(), 70), trained(fresh(), 70), trained(fresh(1), 70)

    assert all(np.array_equal(first.network.arrays[name], second.network.arrays[name]) for name in first.network.arrays)
    assert not np.array_equal(first.network.arrays["w1"], other.network.arrays["w1"])


@pytest.mark.parametrize("stop", [25, STEPS, STEPS + 1])
def test_a_resumed_run_goes_on_exactly(tmp_path: Path, stop: int) -> None:
    """A run that resumes from a checkpoint of any step ends exactly as a run without a stop."""
    straight = trained(fresh(), 100)
    checkpoint.save(tmp_path, trained(fresh(), stop))

    resumed = checkpoint.load(tmp_path)

    assert resumed is not None
    trained(resumed, 100 - stop)
    assert (resumed.epoch, resumed.step, resumed.loss) == (straight.epoch, straight.step, straight.loss)
    assert all(np.array_equal(resumed.network.arrays[name], value) for name, value in straight.network.arrays.items())


def test_without_a_checkpoint(tmp_path: Path) -> None:
    """An empty folder has no checkpoint to resume from."""
    assert checkpoint.load(tmp_path) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_checkpoint_is_reported(tmp_path: Path, damage: bytes | None) -> None:
    """A file that is not a checkpoint, or half of one, is an error and not a missing checkpoint."""
    file = tmp_path / checkpoint.FILE
    checkpoint.save(tmp_path, fresh())
    file.write_bytes(file.read_bytes()[:-200] if damage is None else damage)

    with pytest.raises(checkpoint.Unreadable):
        checkpoint.load(tmp_path)


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    """A file in the right format with other arrays is refused."""
    np.savez(tmp_path / checkpoint.FILE, numbers=np.zeros(4), losses=0.0)

    with pytest.raises(checkpoint.Unreadable, match="another version"):
        checkpoint.load(tmp_path)


def test_saving_leaves_no_other_files(tmp_path: Path) -> None:
    """After two saves there is one file."""
    for _ in range(2):
        checkpoint.save(tmp_path, fresh())

    assert [file.name for file in tmp_path.iterdir()] == [checkpoint.FILE]


def test_the_line_shows_the_progress_of_the_epoch() -> None:
    """The line has steps, ETA, loss, accuracy and time per step, in the style of Keras."""
    state = fresh()
    state.step, state.losses, state.correct = 30, 15.0, 30 * BATCH // 4

    assert progress.step_line(state, 0.25) == (
        "30/60 [===============>..............] - ETA: 8s - loss: 0.5000 - accuracy: 0.2500 - 250ms/step"
    )


@pytest.mark.parametrize(
    "elapsed, cpu, pause",
    [(0.001, 0.001, 0.249), (0.01, 0.01, 0.39), (0.3, 0.001, 0.0)],
    ids=["a quick step waits", "a costly step pauses longer", "a late step does not pause"],
)
def test_the_pace_keeps_to_its_share(elapsed: float, cpu: float, pause: float) -> None:
    """On any machine, a step and its pause together use no more of a core than the share."""
    assert Pace(step_seconds=0.25, cpu_share=0.025).pause(elapsed, cpu) == pytest.approx(pause)
