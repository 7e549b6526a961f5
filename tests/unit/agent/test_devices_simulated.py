"""What pods on simulated nodes are told."""

from __future__ import annotations

from aliquot.agent import presets
from aliquot.agent.devices.base import Devices
from aliquot.agent.devices.simulated import SimulatedDevices
from aliquot.types import DeviceShare


def demo() -> Devices:
    return SimulatedDevices(presets.load("demo").nodes)


def test_a_pod_is_told_its_gpus() -> None:
    """A pod with two GPUs sees their names, in order, and that there are two."""
    shares = [DeviceShare(index=2, milli=1000), DeviceShare(index=5, milli=1000)]

    told = demo().environment("dgx1-2", shares)

    assert told["NVIDIA_VISIBLE_DEVICES"] == "GPU-sim-dgx1-2-2,GPU-sim-dgx1-2-5"
    assert told["RUNAI_NUM_OF_GPUS"] == "2"


def test_a_fraction_is_told_as_one() -> None:
    """A pod with a part of a GPU is told the part."""
    assert demo().environment("dgx1-1", [DeviceShare(index=0, milli=300)])["RUNAI_NUM_OF_GPUS"] == "0.3"


def test_a_pod_without_gpus_sees_none() -> None:
    """Without a share there is nothing to see."""
    told = demo().environment("dgx1-1", [])

    assert (told["NVIDIA_VISIBLE_DEVICES"], told["RUNAI_NUM_OF_GPUS"]) == ("void", "0")


def test_real_gpus_stay_hidden() -> None:
    """A pod on a simulated node is not shown the machine's own GPU: it was not granted."""
    assert demo().environment("dgx1-1", [DeviceShare(index=0, milli=1000)])["CUDA_VISIBLE_DEVICES"] == ""
