"""A job that fills the disk does not affect other jobs or stored data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.crash.disk import small_disk
from support.pods.agent_harness import AgentHarness, code, shell
from support.waiting import eventually


@pytest.mark.parametrize("place", ["/workload", "/checkpoints"])
async def test_full_disk(tmp_path: Path, place: str) -> None:
    """While one job has filled the disk, another that prints goes on; new pods report why they cannot start."""
    with small_disk(tmp_path / "disk", 8192) as disk:
        harness = AgentHarness(disk / "data", isolated=True)
        try:
            await _fill_and_free(harness, disk, place)
        finally:
            await harness.clean()


async def _fill_and_free(harness: AgentHarness, disk: Path, place: str) -> None:
    workload = await harness.workload("g")
    async with harness.agent():
        script = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /dev/shm/alive; sleep 0.02; done"
        bystander = await harness.run(shell("b-0-0", script))
        await harness.printed(bystander, "3\n")
        greedy = await harness.run(shell("g-0-0", f"cat /dev/zero > {place}/big; sleep 1000", workload=workload))
        await eventually(lambda: _full(disk))
        late = await harness.phase(await harness.create(shell("l-0-0", "true")), "Failed", "Succeeded")
        assert "o space left" in late.status.message
        assert (await harness.see(bystander)).status.phase == "Running"
        await harness.store.delete(workload)
        await harness.delete(greedy, grace=0)
        await harness.gone(greedy)
        await eventually(lambda: _freed(harness.checkpoints(workload)))
        before = len(await harness.log(bystander))

        async def goes_on() -> bool:
            return len(await harness.log(bystander)) > before

        await eventually(goes_on)
        after, _ = await harness.finish(shell("n-0-0", "echo fine"))
        assert code(after) == 0


async def _freed(folder: Path) -> bool:
    return not await asyncio.to_thread(folder.exists)


async def _full(disk: Path) -> bool:
    def free() -> bool:
        try:
            (disk / "probe").write_bytes(b"x" * 65536)
        except OSError:
            return True
        finally:
            (disk / "probe").unlink(missing_ok=True)
        return False

    return await asyncio.to_thread(free)
