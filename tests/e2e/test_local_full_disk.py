"""A job that fills its folder harms nobody else's job or data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.crash.disk import small_disk
from support.pods.world import World, code, shell
from support.stores.running import until


@pytest.mark.parametrize("place", ["/workload", "/checkpoints"])
async def test_full_disk(tmp_path: Path, place: str) -> None:
    """While one job has filled the disk, another that prints goes on; new pods say why they cannot start."""
    with small_disk(tmp_path / "disk", 8192) as disk:
        world = World(disk / "data", isolated=True)
        try:
            await _fill_and_free(world, disk, place)
        finally:
            await world.clean()


async def _fill_and_free(world: World, disk: Path, place: str) -> None:
    workload = await world.workload("g")
    async with world.agent():
        script = "i=0; while :; do i=$((i+1)); echo $i; echo $i > /dev/shm/alive; sleep 0.02; done"
        bystander = await world.run(shell("b-0-0", script))
        await world.printed(bystander, "3\n")
        greedy = await world.run(shell("g-0-0", f"cat /dev/zero > {place}/big; sleep 1000", workload=workload))
        await until(lambda: _full(disk))
        late = await world.phase(await world.create(shell("l-0-0", "true")), "Failed", "Succeeded")
        assert "o space left" in late.status.message
        assert (await world.see(bystander)).status.phase == "Running"
        await world.store.delete(workload)
        await world.delete(greedy, grace=0)
        await world.gone(greedy)
        await until(lambda: _freed(world.checkpoints(workload)))
        before = len(await world.log(bystander))

        async def goes_on() -> bool:
            return len(await world.log(bystander)) > before

        await until(goes_on)
        after, _ = await world.finish(shell("n-0-0", "echo fine"))
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
