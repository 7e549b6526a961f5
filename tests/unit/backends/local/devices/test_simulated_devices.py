"""The GPUs that pods on simulated nodes see."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from aliquot.api import Device, DeviceShare
from aliquot.backends.local import simulated_clusters
from aliquot.backends.local.devices.node_devices import NodeFacts
from aliquot.backends.local.devices.simulated import SimulatedDevices
from aliquot.gpu.fractions import SharingOptions


def environment(node: str, *shares: DeviceShare) -> Mapping[str, str]:
    """The variables of a pod with these shares."""
    return (
        SimulatedDevices(simulated_clusters.load("demo").nodes)
        .injection(node, shares, SharingOptions(), "pod")
        .environment
    )


def test_a_pod_sees_its_gpus() -> None:
    """A pod with two GPUs gets their uuids in order, and their number."""
    shares = [DeviceShare(index=2, milli=1000), DeviceShare(index=5, milli=1000)]

    variables = environment("dgx1-2", *shares)

    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-sim-dgx1-2-2,GPU-sim-dgx1-2-5"
    assert variables["RUNAI_NUM_OF_GPUS"] == "2"


def test_a_pod_sees_its_fraction() -> None:
    """A pod with a GPU fraction gets the fraction as its number of GPUs."""
    assert environment("dgx1-1", DeviceShare(index=0, milli=300))["RUNAI_NUM_OF_GPUS"] == "0.3"


def test_a_pod_without_gpus_sees_none() -> None:
    """A pod without shares sees no GPU."""
    variables = environment("dgx1-1")

    assert (variables["NVIDIA_VISIBLE_DEVICES"], variables["RUNAI_NUM_OF_GPUS"]) == ("void", "0")


def test_real_gpus_stay_hidden() -> None:
    """A pod on a simulated node does not see the machine's own GPU."""
    assert environment("dgx1-1", DeviceShare(index=0, milli=1000))["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("model", "mib", "milli", "wanted"),
    [
        ("Tesla V100-SXM2-32GB", 32510, 500, 16255),  # F1
        ("NVIDIA A10", 23028, 300, 6908),  # F3, and F11: a GPU without MIG
        ("NVIDIA A10", 23028, 500, 11514),  # F4
        ("NVIDIA A10", 23028, 200, 4605),
        ("Tesla V100-SXM2-16GB", 16130, 500, 8065),  # F5
    ],
)
def test_nvidia_smi_prints_the_fraction(tmp_path: Path, model: str, mib: int, milli: int, wanted: int) -> None:
    """The program on the pod's PATH shows one GPU with index 0 and the pod's fraction as its whole memory."""
    device = Device(index=3, uuid="GPU-sim-n-3", model=model, memory_mib=mib)
    node = NodeFacts(name="n", devices=(device,), simulated=True)

    injection = SimulatedDevices([node]).injection("n", [DeviceShare(index=3, milli=milli)], SharingOptions(), "pod")

    for file in injection.files:
        path = tmp_path / Path(file.path).name
        path.write_text(file.text)
        path.chmod(0o755)
    query = [str(tmp_path / "nvidia-smi"), "--query-gpu=index,name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False, env={})
    assert done.stdout == f"0, {model}, {wanted} MiB\n"
