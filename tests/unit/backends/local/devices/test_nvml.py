"""NVIDIA's driver. On a machine that has one, results are compared with nvidia-smi; elsewhere there is none."""

from __future__ import annotations

import shutil
import subprocess

from aliquot.backends.local.devices import nvml


def driver_lists() -> list[str]:
    """What `nvidia-smi` reports about each GPU; nothing where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def test_the_machine_has_what_its_driver_lists() -> None:
    """Index, UUID and model of every GPU are those of nvidia-smi; without a GPU there is no driver."""
    driver = nvml.open_driver()

    gpus = driver.gpus() if driver else ()
    assert [f"{c.device.index}, {c.device.uuid}, {c.device.model}" for c in gpus] == driver_lists()
    assert all(gpu.device.healthy for gpu in gpus)


def test_a_driver_that_was_never_opened_answers() -> None:
    """Without a driver, or when it is gone, there are no GPUs, no processes, no version, and no error."""
    driver = nvml.NvmlDriver()

    if not driver_lists():
        assert (driver.gpus(), driver.process_memory(), driver.process_utilization(), driver.version()) == (
            (),
            (),
            (),
            "",
        )
        assert not driver.supports_cgroup_limits()
