"""Real GPUs. On a machine that has some, the driver's own tool is asked for the truth; elsewhere there are none."""

from __future__ import annotations

import shutil
import subprocess

from aliquot.agent.devices import nvml
from aliquot.agent.devices.nvml import NvmlDevices
from aliquot.types import Device, DeviceShare

ONE = Device(index=0, uuid="GPU-a", model="NVIDIA A10", memory_mib=23028)
TWO = Device(index=1, uuid="GPU-b", model="NVIDIA A10", memory_mib=23028)


class Driver:
    """A driver whose answers a test chooses."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def scan(self) -> tuple[Device, ...]:
        return self.devices


def driver_lists() -> list[str]:
    """What `nvidia-smi` says about each GPU; nothing where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def test_the_machine_has_what_its_driver_lists() -> None:
    """Index, UUID, model and memory of every GPU are those of nvidia-smi; without a GPU there is no node."""
    found = nvml.open_devices("here")

    devices = found.nodes()[0].devices if found else ()
    assert [f"{d.index}, {d.uuid}, {d.model}, {d.memory_mib}" for d in devices] == driver_lists()
    assert all(device.healthy for device in devices)


def test_this_machine_is_one_node() -> None:
    """Cores and memory of the machine are the node's; it is not simulated."""
    (node,) = NvmlDevices("here", Driver(ONE).scan).nodes()

    assert (node.name, node.devices, node.simulated) == ("here", (ONE,), False)
    assert node.cpu >= 1000
    assert node.memory > 1 << 28


def test_a_pod_sees_the_gpus_it_was_given() -> None:
    """CUDA and containers are both told by UUID, which no reordering changes."""
    told = NvmlDevices("here", Driver(ONE, TWO).scan).environment("here", [DeviceShare(index=1, milli=500)])

    assert told["NVIDIA_VISIBLE_DEVICES"] == told["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert told["RUNAI_NUM_OF_GPUS"] == "0.5"


def test_a_pod_without_a_share_sees_no_gpu() -> None:
    """What was not granted is hidden from CUDA too."""
    told = NvmlDevices("here", Driver(ONE).scan).environment("here", [])

    assert (told["NVIDIA_VISIBLE_DEVICES"], told["CUDA_VISIBLE_DEVICES"]) == ("void", "")


def test_a_gpu_that_is_lost_keeps_its_name() -> None:
    """A GPU that stops answering stays listed, with its name, as not usable; the other goes on."""
    driver = Driver(ONE, TWO)
    devices = NvmlDevices("here", driver.scan)

    driver.devices = (ONE, Device(index=1, healthy=False))

    first, second = devices.nodes()[0].devices
    assert (first.healthy, second.healthy, second.uuid) == (True, False, "GPU-b")


def test_a_gpu_that_comes_back_is_used_again() -> None:
    """After the driver was away and came back, its GPUs are well again."""
    driver = Driver(ONE, TWO)
    devices = NvmlDevices("here", driver.scan)
    driver.devices = ()
    assert [device.healthy for device in devices.nodes()[0].devices] == [False, False]

    driver.devices = (ONE, TWO)

    assert devices.nodes()[0].devices == (ONE, TWO)
