"""Following a log from the very beginning."""

from __future__ import annotations

import pytest

from aliquot.errors import Conflict
from support.pods.world import World, pod


async def test_not_over_before_it_began(world: World) -> None:
    """Who follows a log while its pod is being started is not told that it is over."""
    async with world.agent():
        seen = await world.create(pod("p-0-0", "sleep", "infinity", node="elsewhere"))
        # As the launcher leaves it for a moment: the log is there, the process is not.
        folder = world.data / "pods" / seen.metadata.uid
        folder.mkdir()
        (folder / "log").touch()
        with pytest.raises(Conflict, match="has no log"):
            await world.log(seen, follow=True)
