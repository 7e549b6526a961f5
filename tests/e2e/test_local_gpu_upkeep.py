"""What an agent with real GPUs keeps for its pods, in the kernel's own hands: groups, pipes and folders.

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
from support.pods.single import UID, said
from support.pods.world import World, needs_root, pod
from support.stores.running import running, until


@needs_root
async def test_a_pod_reaches_the_mps_daemon(island: World, tmp_path: Path) -> None:
    """The folder of the daemon's pipes is in the pod, and those of other cards are not."""
    for name in ("GPU-a", "GPU-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control").write_text(name)
    given = Injection(mounts=(Mount("/run/gpushare/mps", str(tmp_path / "GPU-a"), read_only=False),))

    assert await said(island, "cat /run/gpushare/mps/control; ls /run/gpushare", given) == "GPU-amps\n"


class Tree:
    """Control groups that are folders, so that a test can see who joins them, and spoil them."""

    def __init__(self, folder: Path) -> None:
        for place in (folder, folder / "aliquot"):
            place.mkdir()
            (place / "cgroup.controllers").write_text("cpu memory\n")
            (place / "cgroup.subtree_control").touch()
        self.groups = Cgroups(folder, folder)
        self.leaf = folder / "aliquot" / UID


@needs_root
async def test_commands_in_a_pod_are_limited_too(island: World, tmp_path: Path) -> None:
    """`runai exec` joins the group that the driver limits; where it cannot, nothing is run."""
    tree = Tree(tmp_path / "tree")
    runtime = ProcessRuntime(island.data, isolated=True, control_groups=tree.groups, cgroup_limiter=r615())
    assert runtime.cgroup_version == 2
    assignment = PodAssignment(UID, "runai-team-a", "p-0-0", NODE)
    given = Injection(cgroup_limits=(CgroupLimit("GPU-a", 1 << 30, 1 << 30),))
    seen = Pod(metadata=Metadata(name="p-0-0", namespace="runai-team-a", uid=UID))
    async with running(runtime.run()):
        found = await runtime.start(Launch(assignment, 0, ("sleep", "1000"), injection=given))
        assert isinstance(found, Started)
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


async def test_what_was_left_of_pods_that_are_gone(world: World, tmp_path: Path) -> None:
    """A platform that was killed while it removed a pod leaves its folder; the next one removes it at its start."""
    devices: RealDevices = node_of(tmp_path, FakeDriver())
    left = devices.share_dirs.pod_dir(UID)
    left.mkdir(parents=True)
    (left / "limits").write_text("gpushare 1\n")
    runtime = ProcessRuntime(world.data, isolated=world.isolated)
    agent = Agent(Store(MemoryDriver()), devices, runtime, Catalogue())

    async def gone() -> bool:
        return not await asyncio.to_thread(left.exists)

    async with running(runtime.run(), agent.run()):
        await until(gone)


async def test_what_a_pod_had_goes_when_it_ends(world: World, tmp_path: Path) -> None:
    """Its limits and ledger, and with the last one a daemon, need not wait until somebody deletes the pod."""
    devices: RealDevices = node_of(tmp_path, FakeDriver())
    store = Store(MemoryDriver())
    runtime = ProcessRuntime(world.data, isolated=world.isolated)
    agent = Agent(store, devices, runtime, Catalogue())
    await store.create(Namespace(metadata=Metadata(name="runai-team-a")))
    part = DeviceShare(index=0, milli=500)
    async with running(runtime.run(), agent.run()):
        made = await store.create(pod("p-0-0", "true", shares=[part], node=NODE))

        async def ended() -> bool:
            phase = (await store.get(Pod, "p-0-0", "runai-team-a")).status.phase
            return phase in ("Succeeded", "Failed") and not devices.share_dirs.pod_dir(made.metadata.uid).exists()

        await until(ended)
        await runtime.remove(made.metadata.uid)
