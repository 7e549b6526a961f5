"""A platform of one agent, to be killed: reads wishes from standard input, one JSON a line, and answers each."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

from aliquot.agent.images import Catalogue
from aliquot.agent.runner import Agent
from aliquot.agent.runtimes.process import ProcessRuntime
from aliquot.errors import Exists
from aliquot.store.sqlite import SqliteBody
from aliquot.store.typed import Store
from aliquot.telemetry import logs
from aliquot.types import Metadata, Namespace, Pod
from bodies.running import running
from pods.world import DEVICES, shell


async def main(data: Path, isolated: bool) -> None:
    store = Store(SqliteBody(data / "aliquot.db"))
    runtime = ProcessRuntime(data, isolated=isolated)
    async with running(runtime.run(), Agent(store, DEVICES, runtime, Catalogue()).run()):
        with suppress(Exists):
            await store.create(Namespace(metadata=Metadata(name="runai-team-a")))
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            wish = json.loads(line)
            if "create" in wish:
                await store.create(shell(wish["create"], "echo started; exec sleep 1000"))
                print(json.dumps({"created": wish["create"]}), flush=True)
            else:
                pods = (await store.list(Pod)).items
                print(json.dumps({pod.metadata.uid: pod.status.phase for pod in pods}), flush=True)


if __name__ == "__main__":
    logs.configure(level="warn")
    Path(sys.argv[1]).mkdir(exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "root"))
