"""A program that creates objects in its own SQLite store, prints their names, and kills itself.

Usage: sqlite_writer.py FILE SYNCHRONOUS COUNT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from aliquot.api import KINDS
from aliquot.store.driver import Document
from aliquot.store.drivers.sqlite import SqliteDriver

DEPARTMENT = KINDS.named("Department")


async def main(path: str, synchronous: str, count: str) -> None:
    driver = SqliteDriver(Path(path), synchronous=synchronous)
    for number in range(int(count)):
        created = await driver.create(DEPARTMENT, Document({"metadata": {"name": f"d{number}"}, "spec": {}}))
        print(created.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(*sys.argv[1:]))
