"""NVIDIA's driver. On a machine with a driver the results are compared with nvidia-smi; elsewhere there are no GPUs."""

from __future__ import annotations

import shutil
import subprocess

from aliquot.backends.local.devices import nvml


def smi_lines() -> list[str]:
    """What `nvidia-smi` reports about each GPU; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def test_gpus_are_those_of_nvidia_smi() -> None:
    """Index, UUID and model of every GPU are those of nvidia-smi; without a GPU there is no driver."""
    driver = nvml.open_driver()

    gpus = driver.gpus() if driver else ()
    assert [f"{c.device.index}, {c.device.uuid}, {c.device.model}" for c in gpus] == smi_lines()
    assert all(gpu.device.healthy for gpu in gpus)


def test_a_driver_that_was_never_opened_answers() -> None:
    """Without a driver there are no GPUs, no processes and no version, and no error is raised."""
    driver = nvml.NvmlDriver()

    if not smi_lines():
        assert (driver.gpus(), driver.process_memory(), driver.process_utilization(), driver.version()) == (
            (),
            (),
            (),
            "",
        )
        assert not driver.supports_cgroup_limits()
