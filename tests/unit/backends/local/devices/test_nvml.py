"""NVIDIA's driver. On a machine that has one, its own tool is asked for the truth; elsewhere there is none."""

from __future__ import annotations

import shutil
import subprocess

from aliquot.backends.local.devices import nvml


def driver_lists() -> list[str]:
    """What `nvidia-smi` says about each GPU; nothing where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def test_the_machine_has_what_its_driver_lists() -> None:
    """Index, UUID and model of every GPU are those of nvidia-smi; without a GPU there is no driver for us."""
    driver = nvml.open_driver()

    cards = driver.gpus() if driver else ()
    assert [f"{c.device.index}, {c.device.uuid}, {c.device.model}" for c in cards] == driver_lists()
    assert all(card.device.healthy for card in cards)


def test_a_driver_that_was_never_opened_answers() -> None:
    """Without a driver, or when it is gone, there is nothing: no cards, no processes, no version, no error."""
    driver = nvml.NvmlDriver()

    if not driver_lists():
        assert (driver.gpus(), driver.process_memory(), driver.process_utilization(), driver.version()) == (
            (),
            (),
            (),
            "",
        )
        assert not driver.supports_cgroup_limits()
