"""Clients that write and watch while the server is killed, and that know what the store must contain.

Each client is the only writer of its objects. A response settles a write. After a write without a response the client
reads the object to learn whether it took effect. So each client knows the whole history of its objects, and the store
and every watch must show the same history.

Every state has a unique text, written in two fields. A state whose texts differ was written partially.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from aliquot.errors import NotFound, OutOfSpace, Unavailable
from aliquot.store.driver import Change, Document, StoreDriver
from support.stores.namespace import NAMESPACE, TEMPLATE, changed, document

T = TypeVar("T")
SPACE = "fire"
END = "end"
SECONDS = 60.0  # for a killed server to restart on a busy machine
COPY = "aliquot.dev/copy"


def text_of(document: Document) -> str:
    """The text of a state; both fields must agree."""
    text: str = document.data["spec"]["description"]
    assert document.metadata["annotations"][COPY] == text, f"a partial write: {document}"
    return text


@dataclass
class ObjectHistory:
    """The history of one object as its writer knows it: (type of change, text), oldest first."""

    history: list[tuple[str, str]] = field(default_factory=list)
    document: Document | None = None
    attempt: str | None = None  # the text of a write in progress; "" for a delete

    @property
    def text(self) -> str:
        """The current text; empty when the object does not exist."""
        return "" if not self.history or self.history[-1][0] == "DELETED" else self.history[-1][1]


class Client:
    def __init__(self, driver: StoreDriver, name: str, *, objects: int = 4) -> None:
        self._driver = driver
        self._random = random.Random(name)
        self._number = 0
        self.name = name
        self.records = {f"{name}-{number}": ObjectHistory() for number in range(objects)}
        self.acknowledged = 0
        self.unanswered = 0
        self.errors: list[Unavailable | OutOfSpace] = []

    def reconnect(self, driver: StoreDriver) -> None:
        """Continue with another server that has the same objects."""
        self._driver = driver

    async def step(self) -> None:
        """Makes one write; when it returns, the client knows whether it took effect."""
        name = self._random.choice(list(self.records))
        record = self.records[name]
        self._number += 1
        text = f"{name}.{self._number}"
        if record.document is None:
            template = document(TEMPLATE, name, SPACE, {"description": text}, annotations={COPY: text})
            await self._write(name, "ADDED", text, lambda: self._driver.create(TEMPLATE, template))
            return
        current = record.document
        choice = self._random.random()
        if choice < 0.2:
            await self._write(name, "DELETED", "", lambda: self._driver.delete(TEMPLATE, name, SPACE))
        elif choice < 0.6:
            update = changed(current, spec={"description": text}, annotations={COPY: text})
            await self._write(name, "MODIFIED", text, lambda: self._driver.update(TEMPLATE, update))
        else:
            patch = {"spec": {"description": text}, "metadata": {"annotations": {COPY: text}}}
            await self._write(name, "MODIFIED", text, lambda: self._driver.patch(TEMPLATE, name, SPACE, patch))

    async def _write(self, name: str, type_: str, text: str, call: Callable[[], Awaitable[Document | bool]]) -> None:
        record = self.records[name]
        record.attempt = text
        try:
            answer = await call()
            self.acknowledged += 1
            self._settle(record, type_, text, answer if isinstance(answer, Document) else None)
        except (Unavailable, OutOfSpace) as exc:
            self.unanswered += 1
            self.errors.append(exc)
            await self._check_effect(name, type_, text, may_change=not isinstance(exc, OutOfSpace))
        record.attempt = None

    async def _check_effect(self, name: str, type_: str, text: str, *, may_change: bool) -> None:
        record, stored = self.records[name], await self._read(name)
        now = "" if stored is None else text_of(stored)
        assert now in (record.text, text), f"{name} is {now!r}, neither {record.text!r} nor {text!r}"
        if now == text != record.text:
            assert may_change, "a write to a full disk changed something"
            self._settle(record, type_, text, stored)

    def _settle(self, record: ObjectHistory, type_: str, text: str, stored: Document | None) -> None:
        assert (stored is None) == (type_ == "DELETED")
        # A deletion event carries the last state.
        record.history.append((type_, text or record.text))
        record.document = stored

    async def _read(self, name: str) -> Document | None:
        try:
            return await retry_while_unavailable(lambda: self._driver.get(TEMPLATE, name, SPACE))
        except NotFound:
            return None


async def retry_while_unavailable(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a read, repeated while the server is unavailable."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


class WatchRecorder:
    """Watches all objects from a version on, and resumes from the last version when the stream breaks."""

    def __init__(self, driver: StoreDriver, version: str) -> None:
        self._driver = driver
        self.version = version
        self.seen: list[tuple[int, str, str, str]] = []  # version, type, name, text
        self.resumed = 0

    async def run(self) -> None:
        """Watches until the end marker appears."""
        while True:
            try:
                async for change in self._driver.watch(TEMPLATE, SPACE, version=self.version):
                    self.version = change.version
                    if self._record(change):
                        return
            except Unavailable:
                await asyncio.sleep(0.02)
            self.resumed += 1

    def _record(self, change: Change) -> bool:
        """Whether the change is the end marker."""
        document = change.document
        if document is None:
            return False
        if document.name == END:
            return True
        self.seen.append((int(change.version), change.type, document.name, text_of(document)))
        return False


@dataclass
class ClientGroup:
    """Clients and watches on one store, and the checks on what they saw."""

    clients: list[Client]
    watches: list[WatchRecorder]
    version: str  # of the store before the first write
    _drivers: list[StoreDriver]
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)
    _stopped: bool = False

    @classmethod
    async def connect(cls, driver: Callable[[], StoreDriver], *, clients: int = 8, watches: int = 2) -> ClientGroup:
        first = driver()
        await first.create(NAMESPACE, document(NAMESPACE, SPACE))
        version = (await first.list(TEMPLATE, SPACE)).version
        drivers = [first, *(driver() for _ in range(clients + watches - 1))]
        return cls(
            [Client(each, f"c{number}") for number, each in enumerate(drivers[:clients])],
            [WatchRecorder(each, version) for each in drivers[clients:]],
            version,
            drivers,
        )

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    @property
    def unanswered(self) -> int:
        return sum(client.unanswered for client in self.clients)

    @property
    def records(self) -> dict[str, ObjectHistory]:
        return {name: record for client in self.clients for name, record in client.records.items()}

    async def run(self) -> None:
        """Lets all clients write until `stop`."""
        self._stopped = False
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(self._write(client))

    async def _write(self, client: Client) -> None:
        while not self._stopped:
            await client.step()
            async with self._progress:
                self._progress.notify_all()

    def stop(self) -> None:
        self._stopped = True

    async def wait_for_writes(self, steps: int, *, acknowledged: bool = True) -> None:
        """Waits until so many more writes were acknowledged, or attempted."""

        def count() -> int:
            return self.acknowledged + (0 if acknowledged else self.unanswered)

        goal = count() + steps
        async with asyncio.timeout(SECONDS), self._progress:
            await self._progress.wait_for(lambda: count() >= goal)

    async def check_now(self, driver: StoreDriver) -> None:
        """While clients write: the store has every acknowledged state or a later one."""
        before = {name: len(record.history) for name, record in self.records.items()}
        listing = await retry_while_unavailable(lambda: driver.list(TEMPLATE, SPACE))
        stored = {item.name: text_of(item) for item in listing.items}
        for name, record in self.records.items():
            # The state before the list, any state up to its response, or that of a write in progress.
            states = record.history[max(0, before[name] - 1) :]
            allowed = {"" if type_ == "DELETED" else text for type_, text in states} or {""}
            if before[name] == 0:
                allowed.add("")
            if record.attempt is not None:
                allowed.add(record.attempt)
            assert stored.get(name, "") in allowed, name

    async def check_settled(self, driver: StoreDriver) -> None:
        """While no client writes: the store has exactly the objects that the clients know."""
        listing = await retry_while_unavailable(lambda: driver.list(TEMPLATE, SPACE))
        stored = {item.name: text_of(item) for item in listing.items if item.name != END}
        assert stored == {name: record.text for name, record in self.records.items() if record.text}
        versions = [int(item.version) for item in listing.items]
        assert len(set(versions)) == len(versions)

    async def write_end_marker(self, driver: StoreDriver) -> None:
        """Creates the last object; a watch that sees it has seen everything."""
        marker = document(TEMPLATE, END, SPACE, {"description": END}, annotations={COPY: END})
        await driver.create(TEMPLATE, marker)

    def check_watches(self, *more: WatchRecorder) -> None:
        """Every watch saw each state of each object once, in order."""
        for watch in (*self.watches, *more):
            versions = [version for version, _, _, _ in watch.seen]
            assert versions == sorted(set(versions)), "versions must be in order, each once"
            seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
            for _, type_, name, text in watch.seen:
                seen[name].append((type_, text))
            assert dict(seen) == {name: record.history for name, record in self.records.items() if record.history}

    def check_errors(self) -> None:
        """Every error was one line with status 503 or 507."""
        for client in self.clients:
            for error in client.errors:
                assert error.status in (503, 507)
                assert "\n" not in str(error)

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()
