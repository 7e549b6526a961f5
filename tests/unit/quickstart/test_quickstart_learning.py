"""The training of the quickstart image is real: it learns, by fixed rules, and can be taken up again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aliquot.quickstart import checkpoint, progress
from aliquot.quickstart.network import Network, Points, points
from aliquot.quickstart.program import Pace
from aliquot.quickstart.training_state import BATCH, STEPS, TESTS, Course


def course(seed: int = 0) -> Course:
    return Course(Network.fresh(seed), seed)


def trained(subject: Course, steps: int) -> Course:
    train, _ = points(subject.seed, STEPS * BATCH, TESTS)
    for _ in range(steps):
        subject.advance(train)
        if subject.step == STEPS:
            subject.turn()
    return subject


def test_loss_falls_and_accuracy_rises() -> None:
    """Each of the first epochs ends with a lower loss and a higher accuracy than the one before."""
    subject = course()
    train, _ = points(0, STEPS * BATCH, TESTS)
    losses, accuracies = [], []
    for _ in range(8):
        for _ in range(STEPS):
            subject.advance(train)
        losses.append(subject.loss)
        accuracies.append(subject.accuracy)
        subject.turn()

    assert losses == sorted(losses, reverse=True)
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 0.3 < 0.7 < accuracies[-1]


def test_it_learns_what_it_has_not_seen() -> None:
    """After some epochs it is right about most points it was never shown; before, it guesses."""
    _, test = points(0, STEPS * BATCH, TESTS)

    assert course().network.accuracy(test) < 0.2
    assert trained(course(), 20 * STEPS).network.accuracy(test) > 0.8


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    """A step goes where the loss really falls: the slope it uses agrees with the one measured by hand."""
    train, _ = points(3, 32, 1)
    network = Network.fresh(3)
    before = {name: value.copy() for name, value in network.arrays.items()}
    network.learn(train)
    slope = network.arrays["m_w2"][5, 2]  # momentum was zero, so it is the slope of the first step

    assert slope == pytest.approx(measured(before, train, "w2", (5, 2)), rel=0.05, abs=1e-4)


def measured(arrays: dict[str, np.ndarray], batch: Points, name: str, place: tuple[int, int]) -> float:
    """The slope of the loss along one weight, by trying a little more and a little less of it."""
    losses = []
    for change in (0.01, -0.01):
        tried = Network({key: value.copy() for key, value in arrays.items()})
        tried.arrays[name][place] += change
        losses.append(tried.learn(batch)[0])
    return (losses[0] - losses[1]) / 0.02


def test_the_same_seed_gives_the_same_course() -> None:
    """Two runs agree to the last bit; another seed goes another way."""
    one, two, other = trained(course(), 70), trained(course(), 70), trained(course(1), 70)

    assert all(np.array_equal(one.network.arrays[name], two.network.arrays[name]) for name in one.network.arrays)
    assert not np.array_equal(one.network.arrays["w1"], other.network.arrays["w1"])


@pytest.mark.parametrize("stop", [25, STEPS, STEPS + 1])
def test_taken_up_again_it_goes_on_exactly(tmp_path: Path, stop: int) -> None:
    """Stopped at any step and taken up from the checkpoint, it ends where it would have ended without the stop."""
    straight = trained(course(), 100)
    checkpoint.save(tmp_path, trained(course(), stop))

    resumed = checkpoint.load(tmp_path)

    assert resumed is not None
    trained(resumed, 100 - stop)
    assert (resumed.epoch, resumed.step, resumed.loss) == (straight.epoch, straight.step, straight.loss)
    assert all(np.array_equal(resumed.network.arrays[name], value) for name, value in straight.network.arrays.items())


def test_without_a_checkpoint_it_starts_anew(tmp_path: Path) -> None:
    """An empty folder has nothing to take up."""
    assert checkpoint.load(tmp_path) is None


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half", b"\x93NUMPY\x01\x00", None])
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path: Path, damage: bytes | None) -> None:
    """A file that is no checkpoint, or half of one, is told apart from none."""
    file = tmp_path / checkpoint.FILE
    checkpoint.save(tmp_path, course())
    file.write_bytes(file.read_bytes()[:-200] if damage is None else damage)

    with pytest.raises(checkpoint.Unreadable):
        checkpoint.load(tmp_path)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file of the right form with the wrong content is not taken for ours."""
    np.savez(tmp_path / checkpoint.FILE, numbers=np.zeros(4), losses=0.0)

    with pytest.raises(checkpoint.Unreadable, match="another version"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_leaves_nothing_else(tmp_path: Path) -> None:
    """Saved twice, there is one file."""
    for _ in range(2):
        checkpoint.save(tmp_path, course())

    assert [each.name for each in tmp_path.iterdir()] == [checkpoint.FILE]


def test_the_line_says_how_the_epoch_stands() -> None:
    """Steps, time left, loss, accuracy and time per step, in the manner of Keras."""
    subject = course()
    subject.step, subject.losses, subject.right = 30, 15.0, 30 * BATCH // 4

    assert progress.line(subject, 0.25) == (
        "30/60 [===============>..............] - ETA: 8s - loss: 0.5000 - accuracy: 0.2500 - 250ms/step"
    )


@pytest.mark.parametrize(
    "elapsed, cpu, pause",
    [(0.001, 0.001, 0.249), (0.01, 0.01, 0.39), (0.3, 0.001, 0.0)],
    ids=["a quick step waits for its turn", "a costly step rests longer", "a late step does not rest"],
)
def test_the_pace_keeps_to_its_share(elapsed: float, cpu: float, pause: float) -> None:
    """However slow the machine, a step and its rest together use no more of a core than the share."""
    assert Pace(step_seconds=0.25, cpu_share=0.025).pause(elapsed, cpu) == pytest.approx(pause)
