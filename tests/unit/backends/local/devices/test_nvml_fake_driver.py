"""NVIDIA's Python binding and our use of it on the fake driver: GPUs, process memory, context size, limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from native.rig import HERE, compile_library

QUERY = """
import json, sys
from pathlib import Path
from aliquot.backends.local.devices.context_memory import ContextSizes, measure
from aliquot.backends.local.devices.nvml import open_driver
driver = open_driver()
gpus = driver.gpus()
contexts = ContextSizes(Path(sys.argv[1]) / "contexts.json")
contexts.measure_missing(driver, lambda driver, uuid: max(measure(driver, gpu.device.uuid) for gpu in gpus))
print(json.dumps({
    "gpus": [[gpu.device.index, gpu.device.uuid, gpu.device.memory_mib, gpu.total, gpu.device_file] for gpu in gpus],
    "model": gpus[0].device.model,
    "version": driver.version(),
    "uses": [[use.uuid, use.pid, use.used] for use in driver.process_memory()],
    "context": ContextSizes(Path(sys.argv[1]) / "contexts.json").mib(gpus[0].device.model, driver.version()),
}))
"""
# Soft and hard limit of a control group on the first GPU, before and after they are set; or the error.
LIMIT = """
import json, sys
from pathlib import Path
from aliquot.backends.local.devices.gpu_driver import LimitNotSet
from aliquot.backends.local.devices.nvml import open_driver
driver, group = open_driver(), Path(sys.argv[1])
uuid = driver.gpus()[0].device.uuid
try:
    before = driver.limits(group, uuid)
    driver.set_limits(group, uuid, 1 << 30, 2 << 30)
    result = [before, driver.limits(group, uuid), driver.limits(group, driver.gpus()[1].device.uuid)]
except LimitNotSet as exc:
    result = str(exc)
print(json.dumps([driver.version(), driver.supports_cgroup_limits(), result]))
"""
# A pod with a fraction of the first GPU, from the choice of enforcement to its end; control groups are plain folders.
POD = """
import asyncio, json, sys
from pathlib import Path
from aliquot.backends.local.runtime import CannotStart, Launch, PodAssignment
from aliquot.backends.local.devices.context_memory import ContextSizes
from aliquot.backends.local.devices.share_dirs import ShareDirs
from aliquot.backends.local.devices.nvml import open_driver
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.runtimes.cgroups import Cgroups
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.gpu.fractions import SharingOptions
from aliquot.api import DeviceShare

here = Path(sys.argv[1])
tree = here / "tree"
for group in (tree, tree / "aliquot"):
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory")
    (group / "cgroup.subtree_control").touch()
driver = open_driver()
share_dirs, contexts, library = ShareDirs(here / "share_dirs"), ContextSizes(here / "c.json"), Path("/lib/none.so")
devices = RealDevices("here", driver, share_dirs, contexts, library, cgroups=2)
runtime = ProcessRuntime(here / "data", isolated=False, control_groups=Cgroups(tree, tree), cgroup_limiter=driver)
share = DeviceShare(index=0, milli=250)
given = devices.injection("here", [share], SharingOptions(limit_milli=500), "pod-1")
group = tree / "aliquot" / "pod-1"
result = {"backend": devices.choice.enforcement.value}

async def live():
    try:
        await runtime.start(Launch(PodAssignment("pod-1", "runai-a", "p-0-0", "here"), 0, ("true",), injection=given))
        result["set"] = driver.limits(group, devices.uuid(share))
        await runtime.remove("pod-1")
        result["after"] = driver.limits(group, devices.uuid(share))
    except CannotStart as exc:
        result["reason"] = exc.reason

asyncio.run(live())
print(json.dumps(result))
"""
HOLD = "from cu import *; cuda = Cuda(); cuda.alloc(64 * MIB); print('held', flush=True); input()"


class FakeDriverMachine:
    def __init__(self, built: Path, folder: Path, *switches: str) -> None:
        self._folder = folder
        self.environment = {
            "LD_LIBRARY_PATH": f"{folder}:{built}",
            "FAKE_CARD": str(folder / "card"),
            "PYTHONPATH": f"{HERE}:{HERE.parents[1] / 'src'}",
        }
        sources = [HERE / "fake_nvml.c", HERE / "card.c", HERE.parent / "support" / "gpus" / "more_nvml.c"]
        compile_library(folder / "libnvidia-ml.so.1", sources, "-O1", "-Wl,-soname,libnvidia-ml.so.1", *switches)

    def query(self, program: str = QUERY, **env: str) -> Any:
        command = [sys.executable, "-c", program, str(self._folder)]
        env = self.environment | env
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def machine(native_build: Path, tmp_path: Path) -> FakeDriverMachine:
    return FakeDriverMachine(native_build, tmp_path)


def test_gpus_as_the_driver_lists_them(machine: FakeDriverMachine) -> None:
    """Memory is the amount that programs can use; the device file has the driver's minor number, not the index."""
    result = machine.query()

    assert [gpu[0] for gpu in result["gpus"]] == [0, 1]
    assert all(gpu[2:4] == [16384, 16384 << 20] for gpu in result["gpus"])
    assert [gpu[4] for gpu in result["gpus"]] == ["/dev/nvidia1", "/dev/nvidia0"]
    assert (result["model"], result["version"]) == ("Fake 16GB", "580.00.00")


def test_a_context_is_measured(machine: FakeDriverMachine) -> None:
    """The size is measured once per model and driver version by creating a context, and stored."""
    assert machine.query()["context"] == 518


def test_memory_of_a_process(machine: FakeDriverMachine) -> None:
    """A process is listed by pid, with its context and its memory, on the GPU that it uses."""
    command = [sys.executable, "-c", HOLD]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=machine.environment, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        uses = machine.query()["uses"]

        holder.communicate("\n", timeout=60)
    assert [use[1:] for use in uses] == [[holder.pid, (518 + 64) << 20]]


UNLIMITED = (1 << 64) - 1


@pytest.fixture
def newer(native_build: Path, tmp_path: Path) -> FakeDriverMachine:
    """A driver of release 615, built from its documentation."""
    return FakeDriverMachine(native_build, tmp_path, "-DR615")


def test_a_driver_with_cgroup_limits(newer: FakeDriverMachine) -> None:
    """Limits of a control group on one GPU are read back, and apply to that GPU alone."""
    wanted = [[0, UNLIMITED], [1 << 30, 2 << 30], [0, UNLIMITED]]

    assert newer.query(LIMIT) == ["615.10.00", True, wanted]


def test_a_driver_that_refuses_limits(newer: FakeDriverMachine) -> None:
    """The error has the driver's reason and the call that it refused."""
    *_, result = newer.query(LIMIT, FAKE_LIMITS="refused")

    assert result.startswith("nvmlDeviceSetMemoryLimits_v1: ")


def test_a_pod_whose_limits_the_driver_enforces(newer: FakeDriverMachine) -> None:
    """A quarter that may grow to a half of 16384 MiB: guarantee and limit are set, and cleared with the pod."""
    result = newer.query(POD)

    assert result == {"backend": "cgroup", "set": [4096 << 20, 8192 << 20], "after": [0, UNLIMITED]}


@pytest.mark.parametrize("fault", ["refused", "ignored"])
def test_a_pod_whose_limits_the_driver_does_not_set(newer: FakeDriverMachine, fault: str) -> None:
    """It is not started, whether the driver refuses or reports success and does nothing."""
    assert newer.query(POD, FAKE_LIMITS=fault) == {"backend": "cgroup", "reason": "GPULimitNotKept"}


def test_a_driver_without_limits(machine: FakeDriverMachine) -> None:
    """A driver without the calls is detected, and the calls fail with a reason."""
    version, supported, result = machine.query(LIMIT)

    assert (version, supported) == ("580.00.00", False)
    assert result.startswith("nvmlDeviceGetMemoryLimits_v1: ")
