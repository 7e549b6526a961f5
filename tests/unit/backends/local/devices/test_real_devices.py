"""Real GPUs as a node, with a fake driver."""

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


def injection_of(folder: Path, *shares: DeviceShare, library: bool = True) -> Injection:
    return node_of(folder, FakeDriver((ONE, TWO)), library=library).injection(NODE, shares, SharingOptions(), "pod-1")


def test_this_machine_is_one_node(tmp_path: Path) -> None:
    """The node has the machine's cores and memory, and is not simulated."""
    (facts,) = node_of(tmp_path).nodes()

    assert (facts.name, facts.devices, facts.simulated) == (NODE, (ONE.device,), False)
    assert facts.cpu >= 1000
    assert facts.memory > 1 << 28


def test_a_pod_sees_the_gpus_it_was_given(tmp_path: Path) -> None:
    """CUDA and containers get GPUs by UUID, which no reordering changes; only their device files are injected."""
    injection = injection_of(tmp_path, DeviceShare(index=1, milli=1000))

    environment = injection.environment
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert environment["RUNAI_NUM_OF_GPUS"] == "1"
    assert TWO.device_file in injection.devices
    assert ONE.device_file not in injection.devices


def test_a_pod_without_a_share_sees_no_gpu(tmp_path: Path) -> None:
    """GPUs that were not allocated to the pod are hidden from CUDA too."""
    injection = injection_of(tmp_path)

    assert (injection.environment["NVIDIA_VISIBLE_DEVICES"], injection.environment["CUDA_VISIBLE_DEVICES"]) == (
        "void",
        "",
    )
    assert injection.devices == ()


def test_a_fraction_needs_the_library(tmp_path: Path) -> None:
    """Where the library is missing a GPU fraction cannot be enforced, so the pod is not started; whole GPUs work."""
    with pytest.raises(CannotStart, match="not built for this machine") as caught:
        injection_of(tmp_path, DeviceShare(index=0, milli=500), library=False)

    assert caught.value.reason == "GPUShareNotLoaded"
    assert injection_of(tmp_path, DeviceShare(index=0, milli=1000), library=False).devices


def test_a_lost_gpu_keeps_its_uuid(tmp_path: Path) -> None:
    """A GPU that stops answering stays listed with its uuid, as unhealthy; the other goes on."""
    driver = FakeDriver((ONE, TWO))
    devices = node_of(tmp_path, driver)

    driver.lose(1)

    first, second = devices.nodes()[0].devices
    assert (first.healthy, second.healthy, second.uuid) == (True, False, "GPU-b")


def test_a_gpu_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """After the driver was gone and came back, its GPUs are healthy again."""
    driver = FakeDriver((ONE, TWO))
    devices = node_of(tmp_path, driver)
    driver.listed = ()
    assert [device.healthy for device in devices.nodes()[0].devices] == [False, False]

    driver.listed = (ONE, TWO)

    assert devices.nodes()[0].devices == (ONE.device, TWO.device)


@pytest.mark.parametrize(
    ("version", "supports_limits", "cgroups", "library", "wanted"),
    [
        ("580.159.04", False, 2, True, Enforcement.SHIM),
        ("615.10", True, 2, True, Enforcement.CGROUP),
        ("615.10", False, 2, True, Enforcement.SHIM),  # the version alone proves nothing
        ("615.10", True, 1, True, Enforcement.SHIM),
        ("610.10", True, 2, True, Enforcement.SHIM),
        ("", False, 2, True, Enforcement.SHIM),
        ("580.159.04", False, 2, False, Enforcement.NONE),
        ("615.10", True, 2, False, Enforcement.NONE),  # managed memory would not be limited
    ],
)
def test_choice_of_enforcement(
    version: str, supports_limits: bool, cgroups: int, library: bool, wanted: Enforcement
) -> None:
    """The driver enforces limits if it and the control groups can, otherwise the library; each with a reason."""
    choice = choose_enforcement(version, supports_limits, cgroups, library)

    assert choice.enforcement is wanted
    assert choice.reason


@pytest.mark.parametrize(("library", "status", "reason"), [(True, "True", "Shim"), (False, "False", "None")])
def test_the_node_reports_the_enforcement(tmp_path: Path, library: bool, status: str, reason: str) -> None:
    """A condition of the node shows the enforcement and why it was chosen."""
    (facts,) = node_of(tmp_path, library=library).nodes()

    (sharing,) = (condition for condition in node_object(facts).status.conditions if condition.type == "GPUSharing")

    assert (sharing.status, sharing.reason) == (status, reason)
    assert sharing.message
    assert "driver 580.159.04: " in sharing.message


def test_the_node_reports_an_outdated_library(tmp_path: Path) -> None:
    """The condition is true once a program has called an entry point that the library does not know."""
    devices = node_of(tmp_path)

    def outdated() -> tuple[str, str]:
        (facts,) = devices.nodes()
        (condition,) = (each for each in node_object(facts).status.conditions if each.type == "ShimOutdated")
        return condition.status, condition.message

    assert outdated()[0] == "False"
    devices.unknown_entry_point = "cuMemAllocTwice"
    status, message = outdated()
    assert status == "True"
    assert "cuMemAllocTwice is unknown; update aliquot" in message


@pytest.mark.parametrize(("cgroups", "limits"), [(2, (CgroupLimit("GPU-a", 5757 * MIB, 18422 * MIB),)), (0, ())])
def test_the_driver_enforces_limits_where_it_can(tmp_path: Path, cgroups: int, limits: tuple[CgroupLimit, ...]) -> None:
    """With driver 615 and cgroups v2 the driver enforces guarantee and limit, the library managed memory."""
    devices = node_of(tmp_path, r615(), cgroups=cgroups)

    injection = devices.injection(NODE, [DeviceShare(index=0, milli=250)], SharingOptions(limit_milli=800), "pod-1")

    assert injection.cgroup_limits == limits
    assert injection.requires_library
    assert ("keeper driver\n" in injection.files[1].text) == bool(limits)


def test_a_reserve_is_not_shared(tmp_path: Path) -> None:
    """Two halves leave the reserve free, and the node's memory does not include it."""
    devices = node_of(tmp_path, settings=GpuSettings(reserve_mib=64))

    injection = devices.injection(NODE, [DeviceShare(index=0, milli=500)], SharingOptions(), "pod-1")

    assert f"limit={(A10_MIB - 64) // 2 * MIB} " in injection.files[1].text
    assert devices.nodes()[0].devices[0].memory_mib == A10_MIB - 64


def test_a_reserve_that_leaves_nothing(tmp_path: Path) -> None:
    """It is refused at the start, and the error names the flag and the GPU."""
    with pytest.raises(Invalid, match="--gpu-reserve-mib 30000 leaves nothing of GPU 0, which has 23028 MiB"):
        node_of(tmp_path, settings=GpuSettings(reserve_mib=30000))


@pytest.mark.parametrize(
    ("options", "mode"), [(SharingOptions(), "fair"), (SharingOptions(mode=ComputeMode.STRICT), "strict")]
)
def test_the_default_compute_mode(tmp_path: Path, options: SharingOptions, mode: str) -> None:
    """The administrator's setting applies, unless the job asks for a mode."""
    devices = node_of(tmp_path, settings=GpuSettings(compute=ComputeMode.FAIR))

    injection = devices.injection(NODE, [DeviceShare(index=0, milli=500)], options, "pod-1")

    assert f"\nmode {mode}\n" in injection.files[1].text
