"""Following a log from the very beginning."""

from __future__ import annotations

import pytest

from aliquot.errors import Conflict
from support.pods.agent_harness import AgentHarness, command_pod


async def test_a_log_does_not_end_before_its_pod_starts(harness: AgentHarness) -> None:
    """A log that is followed while its pod starts does not end at once."""
    async with harness.agent():
        seen = await harness.create(command_pod("p-0-0", "sleep", "infinity", node="elsewhere"))
        # As the launcher leaves it for a moment: the log is there, the process is not.
        folder = harness.data / "pods" / seen.metadata.uid
        folder.mkdir()
        (folder / "log").touch()
        with pytest.raises(Conflict, match="has no log"):
            await harness.log(seen, follow=True)
