"""Many processes with random allocations and random kills: the ledger is correct throughout and empty at the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from native.cu import Ledger
from native.rig import CONTEXT, HERE, Rig


def churn(rig: Rig, processes: int, seconds: float, seed: int) -> None:
    environment = rig.environment(limit=15000, GPUSHARE_CONTEXT_MIB=str(CONTEXT))
    command = [sys.executable, str(HERE / "churn.py"), str(processes), str(seconds), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    operations, _, killed = map(int, done.stdout.split())
    assert operations > 50
    assert killed > 2
    assert rig.held() == 0
    rig.python("Cuda().info()", limit=15000)  # the next process reaps the dead ones
    rig.python("nvml = Nvml(); nvml.memory(nvml.device(Cuda(context=False).uuid()))", limit=15000)
    ledger = Ledger(str(rig.ledger))
    assert ledger.slots() == {}
    assert ledger.total() == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_churn_of_many(rig: Rig, seed: int) -> None:
    """32 processes use every allocator and are killed at random: never above the limit, nothing left at the end."""
    churn(rig, 32, 4, seed)


def test_churn_under_sanitizers(rig: Rig) -> None:
    """The same with a library built with AddressSanitizer and UndefinedBehaviorSanitizer."""
    rig.sanitized = True
    churn(rig, 32, 6, 3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
def test_churn_for_long(rig: Rig, seed: int) -> None:
    """The same for a minute, with other seeds."""
    rig.sanitized = seed % 2 == 0
    churn(rig, 32, 60, seed)
