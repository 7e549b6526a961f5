"""NVIDIA's binding and our use of it, on the stand-in driver: what is listed, what is held, what a context takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from native.rig import HERE, compile_library

ASK = """
import json, sys
from pathlib import Path
from aliquot.agent.devices.calibration import Contexts, measure
from aliquot.agent.devices.nvml import open_driver
driver = open_driver()
cards = driver.cards()
contexts = Contexts(Path(sys.argv[1]) / "contexts.json")
contexts.learn(driver, lambda driver, uuid: max(measure(driver, card.device.uuid) for card in cards))
print(json.dumps({
    "cards": [[card.device.index, card.device.uuid, card.device.memory_mib, card.total, card.file] for card in cards],
    "model": cards[0].device.model,
    "version": driver.version(),
    "uses": [[use.uuid, use.pid, use.used] for use in driver.uses()],
    "context": Contexts(Path(sys.argv[1]) / "contexts.json").mib(cards[0].device.model, driver.version()),
}))
"""
HOLD = "from cu import *; cuda = Cuda(); cuda.alloc(64 * MIB); print('held', flush=True); input()"


class StandIn:
    def __init__(self, built: Path, folder: Path) -> None:
        self._folder = folder
        self.environment = {
            "LD_LIBRARY_PATH": f"{folder}:{built}",
            "FAKE_CARD": str(folder / "card"),
            "PYTHONPATH": f"{HERE}:{HERE.parents[1] / 'src'}",
        }
        sources = [HERE / "fake_nvml.c", HERE / "card.c", HERE.parent / "gpus" / "more_nvml.c"]
        compile_library(folder / "libnvidia-ml.so.1", sources, "-O1", "-Wl,-soname,libnvidia-ml.so.1")

    def ask(self) -> Any:
        command = [sys.executable, "-c", ASK, str(self._folder)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def machine(native_build: Path, tmp_path: Path) -> StandIn:
    return StandIn(native_build, tmp_path)


def test_cards_as_the_driver_lists_them(machine: StandIn) -> None:
    """Memory is what programs can have, and the device file is the driver's number, not the index."""
    found = machine.ask()

    assert [card[0] for card in found["cards"]] == [0, 1]
    assert all(card[2:4] == [16384, 16384 << 20] for card in found["cards"])
    assert [card[4] for card in found["cards"]] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert (found["model"], found["version"]) == ("Stand-in 16GB", "580.00.00")


def test_a_context_is_measured(machine: StandIn) -> None:
    """Once for a model and a driver, by making one; what was found is kept."""
    assert machine.ask()["context"] == 518


def test_what_a_process_holds(machine: StandIn) -> None:
    """The process is named by its number, with its context and its memory, on the card where it is."""
    command = [sys.executable, "-c", HOLD]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=machine.environment, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        uses = machine.ask()["uses"]

        holder.communicate("\n", timeout=60)
    assert [use[1:] for use in uses] == [[holder.pid, (518 + 64) << 20]]
