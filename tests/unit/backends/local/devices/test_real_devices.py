"""Real GPUs as a node, over a driver whose answers a test chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.api import DeviceShare
from aliquot.backends.local.devices.node_devices import node_object
from aliquot.backends.local.devices.real import choose_enforcement
from aliquot.backends.local.gpu_settings import GpuSettings
from aliquot.backends.local.runtime import CannotStart
from aliquot.errors import Invalid
from aliquot.gpu.fractions import ComputeMode, Enforcement, SharingOptions
from aliquot.gpu.injection import CgroupLimit, Injection
from aliquot.units import MIB
from support.gpus import A10_MIB, NODE, ONE, TWO, FakeDriver, node_of, r615


def given(folder: Path, *shares: DeviceShare, library: bool = True) -> Injection:
    return node_of(folder, FakeDriver((ONE, TWO)), library=library).injection(NODE, shares, SharingOptions(), "pod-1")


def test_this_machine_is_one_node(tmp_path: Path) -> None:
    """Cores and memory of the machine are the node's; it is not simulated."""
    (facts,) = node_of(tmp_path).nodes()

    assert (facts.name, facts.devices, facts.simulated) == (NODE, (ONE.device,), False)
    assert facts.cpu >= 1000
    assert facts.memory > 1 << 28


def test_a_pod_sees_the_gpus_it_was_given(tmp_path: Path) -> None:
    """CUDA and containers are both told by UUID, which no reordering changes; only that card's file is there."""
    found = given(tmp_path, DeviceShare(index=1, milli=1000))

    told = found.environment
    assert told["NVIDIA_VISIBLE_DEVICES"] == told["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert told["RUNAI_NUM_OF_GPUS"] == "1"
    assert TWO.device_file in found.devices
    assert ONE.device_file not in found.devices


def test_a_pod_without_a_share_sees_no_gpu(tmp_path: Path) -> None:
    """What was not granted is hidden from CUDA too."""
    found = given(tmp_path)

    assert (found.environment["NVIDIA_VISIBLE_DEVICES"], found.environment["CUDA_VISIBLE_DEVICES"]) == ("void", "")
    assert found.devices == ()


def test_a_part_is_not_given_without_the_library(tmp_path: Path) -> None:
    """Where the library is missing a GPU fraction cannot be enforced, so the pod is not started; whole GPUs work."""
    with pytest.raises(CannotStart, match="not built for this machine") as caught:
        given(tmp_path, DeviceShare(index=0, milli=500), library=False)

    assert caught.value.reason == "GPUShareNotLoaded"
    assert given(tmp_path, DeviceShare(index=0, milli=1000), library=False).devices


def test_a_gpu_that_is_lost_keeps_its_name(tmp_path: Path) -> None:
    """A GPU that stops answering stays listed, with its name, as not usable; the other goes on."""
    driver = FakeDriver((ONE, TWO))
    devices = node_of(tmp_path, driver)

    driver.lose(1)

    first, second = devices.nodes()[0].devices
    assert (first.healthy, second.healthy, second.uuid) == (True, False, "GPU-b")


def test_a_gpu_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """After the driver was away and came back, its GPUs are well again."""
    driver = FakeDriver((ONE, TWO))
    devices = node_of(tmp_path, driver)
    driver.listed = ()
    assert [device.healthy for device in devices.nodes()[0].devices] == [False, False]

    driver.listed = (ONE, TWO)

    assert devices.nodes()[0].devices == (ONE.device, TWO.device)


@pytest.mark.parametrize(
    ("version", "keeps_limits", "cgroups", "library", "wanted"),
    [
        ("580.159.04", False, 2, True, Enforcement.SHIM),
        ("615.10", True, 2, True, Enforcement.CGROUP),
        ("615.10", False, 2, True, Enforcement.SHIM),  # the version alone proves nothing
        ("615.10", True, 1, True, Enforcement.SHIM),
        ("610.10", True, 2, True, Enforcement.SHIM),
        ("", False, 2, True, Enforcement.SHIM),
        ("580.159.04", False, 2, False, Enforcement.NONE),
        ("615.10", True, 2, False, Enforcement.NONE),  # nobody would limit managed memory
    ],
)
def test_who_keeps_the_limits(
    version: str, keeps_limits: bool, cgroups: int, library: bool, wanted: Enforcement
) -> None:
    """The driver where it can and control groups allow it, else the library; each with its reason."""
    choice = choose_enforcement(version, keeps_limits, cgroups, library)

    assert choice.enforcement is wanted
    assert choice.reason


@pytest.mark.parametrize(("library", "status", "reason"), [(True, "True", "Shim"), (False, "False", "None")])
def test_the_node_says_who_keeps_the_limits(tmp_path: Path, library: bool, status: str, reason: str) -> None:
    """`describe node` has a condition with the backend and why it was chosen."""
    (facts,) = node_of(tmp_path, library=library).nodes()

    (found,) = (one for one in node_object(facts).status.conditions if one.type == "GPUSharing")

    assert (found.status, found.reason) == (status, reason)
    assert found.message
    assert "driver 580.159.04: " in found.message


def test_the_node_says_whether_the_library_is_outdated(tmp_path: Path) -> None:
    """From the first program on that has met an entry point which the library does not know."""
    devices = node_of(tmp_path)

    def outdated() -> tuple[str, str]:
        (facts,) = devices.nodes()
        (found,) = (one for one in node_object(facts).status.conditions if one.type == "ShimOutdated")
        return found.status, found.message

    assert outdated()[0] == "False"
    devices.unknown_entry_point = "cuMemAllocTwice"
    status, message = outdated()
    assert status == "True"
    assert "cuMemAllocTwice is unknown; update aliquot" in message


@pytest.mark.parametrize(("cgroups", "limits"), [(2, (CgroupLimit("GPU-a", 5757 * MIB, 18422 * MIB),)), (0, ())])
def test_the_driver_keeps_limits_where_it_can(tmp_path: Path, cgroups: int, limits: tuple[CgroupLimit, ...]) -> None:
    """On a driver of release 615, with groups: guarantee and limit are the driver's, managed memory the library's."""
    devices = node_of(tmp_path, r615(), cgroups=cgroups)

    found = devices.injection(NODE, [DeviceShare(index=0, milli=250)], SharingOptions(limit_milli=800), "pod-1")

    assert found.cgroup_limits == limits
    assert found.requires_library
    assert ("keeper driver\n" in found.files[1].text) == bool(limits)


def test_a_reserve_is_kept_out_of_parts(tmp_path: Path) -> None:
    """Two halves leave it free, and the node offers the card without it."""
    devices = node_of(tmp_path, settings=GpuSettings(reserve_mib=64))

    found = devices.injection(NODE, [DeviceShare(index=0, milli=500)], SharingOptions(), "pod-1")

    assert f"limit={(A10_MIB - 64) // 2 * MIB} " in found.files[1].text
    assert devices.nodes()[0].devices[0].memory_mib == A10_MIB - 64


def test_a_reserve_that_leaves_nothing(tmp_path: Path) -> None:
    """It is refused at the start, with the flag and the card."""
    with pytest.raises(Invalid, match="--gpu-reserve-mib 30000 leaves nothing of GPU 0, which has 23028 MiB"):
        node_of(tmp_path, settings=GpuSettings(reserve_mib=30000))


@pytest.mark.parametrize(
    ("wish", "mode"), [(SharingOptions(), "fair"), (SharingOptions(mode=ComputeMode.STRICT), "strict")]
)
def test_how_time_is_shared_by_default(tmp_path: Path, wish: SharingOptions, mode: str) -> None:
    """As the administrator said, unless the job says."""
    devices = node_of(tmp_path, settings=GpuSettings(compute=ComputeMode.FAIR))

    found = devices.injection(NODE, [DeviceShare(index=0, milli=500)], wish, "pod-1")

    assert f"\nmode {mode}\n" in found.files[1].text
