"""Real GPUs as a node, over a driver whose answers a test chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.agent.base import CannotStart
from aliquot.agent.devices.base import node_object
from aliquot.agent.devices.real import backend
from aliquot.agent.injection import Injection
from aliquot.agent.slices import Backend, Wish
from aliquot.types import DeviceShare
from gpus import NODE, ONE, TWO, FakeDriver, node


def given(folder: Path, *shares: DeviceShare, library: bool = True) -> Injection:
    return node(folder, FakeDriver((ONE, TWO)), library=library).injection(NODE, shares, Wish(), "pod-1")


def test_this_machine_is_one_node(tmp_path: Path) -> None:
    """Cores and memory of the machine are the node's; it is not simulated."""
    (facts,) = node(tmp_path).nodes()

    assert (facts.name, facts.devices, facts.simulated) == (NODE, (ONE.device,), False)
    assert facts.cpu >= 1000
    assert facts.memory > 1 << 28


def test_a_pod_sees_the_gpus_it_was_given(tmp_path: Path) -> None:
    """CUDA and containers are both told by UUID, which no reordering changes; only that card's file is there."""
    found = given(tmp_path, DeviceShare(index=1, milli=1000))

    told = found.environment
    assert told["NVIDIA_VISIBLE_DEVICES"] == told["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert told["RUNAI_NUM_OF_GPUS"] == "1"
    assert TWO.file in found.devices
    assert ONE.file not in found.devices


def test_a_pod_without_a_share_sees_no_gpu(tmp_path: Path) -> None:
    """What was not granted is hidden from CUDA too."""
    found = given(tmp_path)

    assert (found.environment["NVIDIA_VISIBLE_DEVICES"], found.environment["CUDA_VISIBLE_DEVICES"]) == ("void", "")
    assert found.devices == ()


def test_a_part_is_not_given_without_the_library(tmp_path: Path) -> None:
    """Where the library is missing a part of a GPU cannot be fenced off, so the pod is not started; whole GPUs work."""
    with pytest.raises(CannotStart, match="not built for this machine") as caught:
        given(tmp_path, DeviceShare(index=0, milli=500), library=False)

    assert caught.value.reason == "GPUShareNotLoaded"
    assert given(tmp_path, DeviceShare(index=0, milli=1000), library=False).devices


def test_a_gpu_that_is_lost_keeps_its_name(tmp_path: Path) -> None:
    """A GPU that stops answering stays listed, with its name, as not usable; the other goes on."""
    driver = FakeDriver((ONE, TWO))
    devices = node(tmp_path, driver)

    driver.lose(1)

    first, second = devices.nodes()[0].devices
    assert (first.healthy, second.healthy, second.uuid) == (True, False, "GPU-b")


def test_a_gpu_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """After the driver was away and came back, its GPUs are well again."""
    driver = FakeDriver((ONE, TWO))
    devices = node(tmp_path, driver)
    driver.listed = ()
    assert [device.healthy for device in devices.nodes()[0].devices] == [False, False]

    driver.listed = (ONE, TWO)

    assert devices.nodes()[0].devices == (ONE.device, TWO.device)


@pytest.mark.parametrize(
    ("version", "keeps_limits", "cgroups", "library", "wanted"),
    [
        ("580.159.04", False, 2, True, Backend.SHIM),
        ("615.10", True, 2, True, Backend.CGROUP),
        ("615.10", False, 2, True, Backend.SHIM),  # the version alone proves nothing
        ("615.10", True, 1, True, Backend.SHIM),
        ("610.10", True, 2, True, Backend.SHIM),
        ("", False, 2, True, Backend.SHIM),
        ("580.159.04", False, 2, False, Backend.NONE),
    ],
)
def test_who_keeps_the_limits(version: str, keeps_limits: bool, cgroups: int, library: bool, wanted: Backend) -> None:
    """The driver where it can and control groups allow it, else the library; each with its reason."""
    choice = backend(version, keeps_limits, cgroups, library)

    assert choice.backend is wanted
    assert choice.reason


@pytest.mark.parametrize(("library", "status", "reason"), [(True, "True", "Shim"), (False, "False", "None")])
def test_the_node_says_who_keeps_the_limits(tmp_path: Path, library: bool, status: str, reason: str) -> None:
    """`describe node` has a condition with the backend and why it was chosen."""
    (facts,) = node(tmp_path, library=library).nodes()

    (found,) = (one for one in node_object(facts).status.conditions if one.type == "GPUSharing")

    assert (found.status, found.reason) == (status, reason)
    assert found.message
