"""What an agent with real GPUs manages for its pods: control groups, MPS pipes and folders.

The driver is a test's; pods, namespaces and files are real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aliquot.api import DeviceShare, Metadata, Namespace, Pod
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.runner import Agent
from aliquot.backends.local.runtime import Launch, PodAssignment, Started
from aliquot.backends.local.runtimes.cgroups import Cgroups
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.errors import Conflict
from aliquot.gpu.injection import CgroupLimit, Injection, Mount
from aliquot.store.drivers.memory import MemoryDriver
from aliquot.store.typed_store import Store
from aliquot.streams import TerminalSize
from support.gpus import NODE, FakeDriver, node_of, r615
from support.pods.agent_harness import AgentHarness, command_pod, needs_root
from support.pods.single_pod import UID, pod_output
from support.stores.running import running
from support.waiting import eventually


@needs_root
async def test_a_pod_reaches_the_mps_daemon(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """The folder of the daemon's pipes is in the pod, and those of other GPUs are not."""
    for name in ("GPU-a", "GPU-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control").write_text(name)
    given = Injection(mounts=(Mount("/run/gpushare/mps", str(tmp_path / "GPU-a"), read_only=False),))

    assert await pod_output(isolated_harness, "cat /run/gpushare/mps/control; ls /run/gpushare", given) == "GPU-amps\n"


class Tree:
    """Control groups that are plain folders, so that a test can read and damage them."""

    def __init__(self, folder: Path) -> None:
        for place in (folder, folder / "aliquot"):
            place.mkdir()
            (place / "cgroup.controllers").write_text("cpu memory\n")
            (place / "cgroup.subtree_control").touch()
        self.groups = Cgroups(folder, folder)
        self.leaf = folder / "aliquot" / UID


@needs_root
async def test_commands_in_a_pod_are_limited_too(isolated_harness: AgentHarness, tmp_path: Path) -> None:
    """`runai exec` joins the group that the driver limits; where it cannot, nothing is run."""
    tree = Tree(tmp_path / "tree")
    runtime = ProcessRuntime(isolated_harness.data, isolated=True, control_groups=tree.groups, cgroup_limiter=r615())
    assert runtime.cgroup_version == 2
    assignment = PodAssignment(UID, "runai-team-a", "p-0-0", NODE)
    given = Injection(cgroup_limits=(CgroupLimit("GPU-a", 1 << 30, 1 << 30),))
    seen = Pod(metadata=Metadata(name="p-0-0", namespace="runai-team-a", uid=UID))
    async with running(runtime.run()):
        started = await runtime.start(Launch(assignment, 0, ("sleep", "1000"), injection=given))
        assert isinstance(started, Started)
        procs = tree.leaf / "cgroup.procs"
        procs.write_text("")
        session = await runtime.exec(seen, ["true"], tty=False, size=TerminalSize(24, 80))
        assert await session.wait() == 0
        assert procs.read_text() == "0"

        procs.unlink()
        procs.mkdir()
        with pytest.raises(Conflict, match="cannot be enforced"):
            await runtime.exec(seen, ["true"], tty=False, size=TerminalSize(24, 80))
        await runtime.remove(UID)


async def test_leftovers_of_removed_pods(harness: AgentHarness, tmp_path: Path) -> None:
    """A platform that was killed while it removed a pod leaves a folder; the next one removes it at its start."""
    devices: RealDevices = node_of(tmp_path, FakeDriver())
    left = devices.share_dirs.pod_dir(UID)
    left.mkdir(parents=True)
    (left / "limits").write_text("gpushare 1\n")
    runtime = ProcessRuntime(harness.data, isolated=harness.isolated)
    agent = Agent(Store(MemoryDriver()), devices, runtime, Catalogue())

    async def gone() -> bool:
        return not await asyncio.to_thread(left.exists)

    async with running(runtime.run(), agent.run()):
        await eventually(gone)


async def test_resources_are_released_at_the_end(harness: AgentHarness, tmp_path: Path) -> None:
    """When a pod ends, its limits and ledger are removed, and with the last pod the daemon, before it is deleted."""
    devices: RealDevices = node_of(tmp_path, FakeDriver())
    store = Store(MemoryDriver())
    runtime = ProcessRuntime(harness.data, isolated=harness.isolated)
    agent = Agent(store, devices, runtime, Catalogue())
    await store.create(Namespace(metadata=Metadata(name="runai-team-a")))
    part = DeviceShare(index=0, milli=500)
    async with running(runtime.run(), agent.run()):
        made = await store.create(command_pod("p-0-0", "true", shares=[part], node=NODE))

        async def ended() -> bool:
            phase = (await store.get(Pod, "p-0-0", "runai-team-a")).status.phase
            return phase in ("Succeeded", "Failed") and not devices.share_dirs.pod_dir(made.metadata.uid).exists()

        await eventually(ended)
        await runtime.remove(made.metadata.uid)
