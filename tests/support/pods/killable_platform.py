"""A platform of one agent that tests kill: reads requests from stdin, one JSON object a line, and answers each."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

from aliquot.api import Metadata, Namespace, Pod
from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.runner import Agent
from aliquot.backends.local.runtimes.process import ProcessRuntime
from aliquot.errors import Exists
from aliquot.store.drivers.sqlite import SqliteDriver
from aliquot.store.typed_store import Store
from aliquot.telemetry import logs
from support.pods.agent_harness import DEVICES, shell
from support.stores.running import running


async def main(data: Path, isolated: bool) -> None:
    store = Store(SqliteDriver(data / "aliquot.db"))
    runtime = ProcessRuntime(data, isolated=isolated)
    async with running(runtime.run(), Agent(store, DEVICES, runtime, Catalogue()).run()):
        with suppress(Exists):
            await store.create(Namespace(metadata=Metadata(name="runai-team-a")))
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            if "create" in request:
                await store.create(shell(request["create"], "echo started; exec sleep 1000"))
                print(json.dumps({"created": request["create"]}), flush=True)
            else:
                pods = (await store.list(Pod)).items
                print(json.dumps({pod.metadata.uid: pod.status.phase for pod in pods}), flush=True)


if __name__ == "__main__":
    logs.configure(level="warn")
    Path(sys.argv[1]).mkdir(exist_ok=True)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "root"))
