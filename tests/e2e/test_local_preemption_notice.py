"""Preemption notices reach a job before its TERM, and its save reports reach the store."""

from __future__ import annotations

import json

from aliquot import labels
from aliquot.api import Pod
from aliquot.api.pod import last_checkpoint_time
from aliquot.scheduler.eviction_records import EvictionRecord, eviction_record_text
from aliquot.streams import LogOptions
from support.pods.agent_harness import AgentHarness, shell
from support.stores.namespace import POD
from support.waiting import eventually

NOTICE = EvictionRecord("reclaim", "b/owner", "reclaimed by b/owner", 1000.0)
# At TERM it prints the notice as it is at that moment.
LISTENS = (
    "trap 'cat $ALIQUOT_PREEMPTION_FILE || echo none; exit 0' TERM; echo up; while :; do sleep 0.05; done"
)  # fmt: skip
SAVE = "touch $ALIQUOT_SAVED_FILE"


async def evicted(harness: AgentHarness, seen: Pod) -> None:
    """Preempt a pod as the scheduler does: write the eviction record, then delete it."""
    change = {"metadata": {"annotations": {labels.EVICTION_RECORD: eviction_record_text(NOTICE)}}}
    await harness.store.driver.patch(POD, seen.metadata.name, seen.metadata.namespace, change)
    await harness.delete(seen)


async def last_words(harness: AgentHarness, seen: Pod, *, notice: bool) -> str:
    await harness.printed(seen, "up")
    following = harness.runtime.logs(seen, LogOptions(follow=True))
    await (evicted(harness, seen) if notice else harness.delete(seen))
    log = b"".join([piece async for piece in following]).decode()
    await harness.gone(seen)
    return log.removeprefix("up\n")


async def saved(harness: AgentHarness, seen: Pod) -> float:
    """Wait until the store has the time of the pod's last save."""

    async def known() -> bool:
        return last_checkpoint_time(await harness.see(seen)) is not None

    await eventually(known)
    return last_checkpoint_time(await harness.see(seen)) or 0.0


async def test_notice_before_term(harness: AgentHarness) -> None:
    """At the moment of its TERM a preempted job can read why, for which job, since when and until when."""
    async with harness.agent():
        notice = json.loads(await last_words(harness, await harness.run(shell("p-0-0", LISTENS)), notice=True))
    deadline = notice.pop("deadline")
    assert notice == {
        "reason": "reclaimed", "by": "b/owner", "text": "reclaimed by b/owner", "at": "1970-01-01T00:16:40Z",
    }  # fmt: skip
    assert deadline > "2026"


async def test_no_notice_without_preemption(harness: AgentHarness) -> None:
    """A job that its user deletes gets no notice."""
    async with harness.agent():
        log = await last_words(harness, await harness.run(shell("p-0-0", LISTENS)), notice=False)
    assert log.splitlines()[-1] == "none"


async def test_notice_from_the_next_platform(harness: AgentHarness) -> None:
    """An eviction that was recorded while no platform ran becomes a notice at the next start."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", LISTENS))
        await harness.printed(seen, "up")
    await evicted(harness, seen)
    async with harness.agent() as runtime:
        log = b"".join([piece async for piece in runtime.logs(seen, LogOptions(follow=True))]).decode()
        await harness.gone(seen)
    assert json.loads(log.removeprefix("up\n"))["by"] == "b/owner"


async def test_saved_while_it_runs(harness: AgentHarness) -> None:
    """A save report reaches the store, and the next platform keeps it."""
    async with harness.agent():
        seen = await harness.run(shell("p-0-0", f"{SAVE}; exec sleep 1000"))
        first = await saved(harness, seen)
        assert (await harness.see(seen)).status.phase == "Running"
    async with harness.agent():
        await harness.finish(shell("q-0-0", "true"))
        assert await saved(harness, seen) == first
    assert first >= (seen.status.start_time or 0) - 1


async def test_saved_at_the_end(harness: AgentHarness) -> None:
    """A save just before the end is reported with the end."""
    async with harness.agent():
        ended, _ = await harness.finish(shell("p-0-0", SAVE))
    assert last_checkpoint_time(ended) is not None


async def test_own_variables_do_not_move_the_files(harness: AgentHarness) -> None:
    """The files stay where the platform reads them, whatever variables the job sets."""
    env = {"ALIQUOT_SAVED_FILE": "/elsewhere", "ALIQUOT_PREEMPTION_FILE": "/elsewhere"}
    async with harness.agent():
        _, log = await harness.finish(shell("p-0-0", "echo $ALIQUOT_SAVED_FILE $ALIQUOT_PREEMPTION_FILE", env=env))
    assert "/elsewhere" not in log
