"""A job that is stopped for others is told so before its TERM, and what it says it has saved is known."""

from __future__ import annotations

import json

from aliquot import labels
from aliquot.api import Pod
from aliquot.api.pod import last_checkpoint_time
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_text
from aliquot.streams import LogOptions
from support.pods.world import World, shell
from support.stores.namespace import POD
from support.stores.running import until

NOTICE = EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", 1000.0)
# What it prints when it is told to stop is the file as it is at that moment.
LISTENS = (
    "trap 'cat $ALIQUOT_PREEMPTION_FILE || echo none; exit 0' TERM; echo up; while :; do sleep 0.05; done"
)  # fmt: skip
SAVE = "touch $ALIQUOT_SAVED_FILE"


async def evicted(world: World, seen: Pod) -> None:
    """As the scheduler does it: the notice, then the deletion."""
    change = {"metadata": {"annotations": {labels.EVICTION_RECORD: eviction_record_text(NOTICE)}}}
    await world.store.driver.patch(POD, seen.metadata.name, seen.metadata.namespace, change)
    await world.delete(seen)


async def last_words(world: World, seen: Pod, *, notice: bool) -> str:
    await world.printed(seen, "up")
    following = world.runtime.logs(seen, LogOptions(follow=True))
    await (evicted(world, seen) if notice else world.delete(seen))
    log = b"".join([piece async for piece in following]).decode()
    await world.gone(seen)
    return log.removeprefix("up\n")


async def saved(world: World, seen: Pod) -> float:
    """Wait until the store knows that it has saved its work, and when."""

    async def known() -> bool:
        return last_checkpoint_time(await world.see(seen)) is not None

    await until(known)
    return last_checkpoint_time(await world.see(seen)) or 0.0


async def test_told_before_term(world: World) -> None:
    """Who is stopped for others reads why, for whom, since when and until when, at the moment of its TERM."""
    async with world.agent():
        told = json.loads(await last_words(world, await world.run(shell("p-0-0", LISTENS)), notice=True))
    deadline = told.pop("deadline")
    assert told == {
        "reason": "reclaimed", "by": "b/owner", "text": "reclaimed by b/owner", "at": "1970-01-01T00:16:40Z",
    }  # fmt: skip
    assert deadline > "2026"


async def test_nothing_to_tell(world: World) -> None:
    """Who is deleted by its user finds no notice."""
    async with world.agent():
        log = await last_words(world, await world.run(shell("p-0-0", LISTENS)), notice=False)
    assert log.splitlines()[-1] == "none"


async def test_told_by_the_next_platform(world: World) -> None:
    """A notice that was written while no platform ran is passed on by the next one."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", LISTENS))
        await world.printed(seen, "up")
    await evicted(world, seen)
    async with world.agent() as runtime:
        log = b"".join([piece async for piece in runtime.logs(seen, LogOptions(follow=True))]).decode()
        await world.gone(seen)
    assert json.loads(log.removeprefix("up\n"))["by"] == "b/owner"


async def test_saved_while_it_runs(world: World) -> None:
    """A job that says that it has saved its work is believed, and the next platform does not forget it."""
    async with world.agent():
        seen = await world.run(shell("p-0-0", f"{SAVE}; exec sleep 1000"))
        first = await saved(world, seen)
        assert (await world.see(seen)).status.phase == "Running"
    async with world.agent():
        await world.finish(shell("q-0-0", "true"))
        assert await saved(world, seen) == first
    assert first >= (seen.status.start_time or 0) - 1


async def test_saved_at_the_end(world: World) -> None:
    """What was saved at the very end is known with the end."""
    async with world.agent():
        ended, _ = await world.finish(shell("p-0-0", SAVE))
    assert last_checkpoint_time(ended) is not None


async def test_own_names_are_not_followed(world: World) -> None:
    """The files are where the platform looks, whatever the job's own variables say."""
    env = {"ALIQUOT_SAVED_FILE": "/elsewhere", "ALIQUOT_PREEMPTION_FILE": "/elsewhere"}
    async with world.agent():
        _, log = await world.finish(shell("p-0-0", "echo $ALIQUOT_SAVED_FILE $ALIQUOT_PREEMPTION_FILE", env=env))
    assert "/elsewhere" not in log
