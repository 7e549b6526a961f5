"""Clients that write while the ground shakes, and remember exactly what they were told.

A client alone writes its objects. An answer settles a write; a write without one is settled by looking at the object
afterwards, as every careful client does. So in the end it knows each object's whole history, and the store and all
watchers must tell the same one.

Every state has a text of its own, written in two places: a state whose texts differ was half written.
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
SECONDS = 60.0  # for a killed server to be back, on a busy machine
COPY = "aliquot.dev/copy"


def text_of(found: Document) -> str:
    """The state's text; both places must agree."""
    text: str = found.data["spec"]["description"]
    assert found.metadata["annotations"][COPY] == text, f"half a write: {found}"
    return text


@dataclass
class Record:
    """One object's history as its only writer knows it: (type of change, text), oldest first."""

    history: list[tuple[str, str]] = field(default_factory=list)
    document: Document | None = None
    attempt: str | None = None  # the text that a write under way may bring; "" when it is a delete

    @property
    def text(self) -> str:
        """The present state; empty when there is none."""
        return "" if not self.history or self.history[-1][0] == "DELETED" else self.history[-1][1]


class Client:
    def __init__(self, driver: StoreDriver, name: str, *, objects: int = 4) -> None:
        self._driver = driver
        self._random = random.Random(name)
        self._number = 0
        self.name = name
        self.records = {f"{name}-{number}": Record() for number in range(objects)}
        self.acknowledged = 0
        self.unanswered = 0
        self.errors: list[Unavailable | OutOfSpace] = []

    def move(self, driver: StoreDriver) -> None:
        """Go on with another server that has the same objects."""
        self._driver = driver

    async def step(self) -> None:
        """One write, settled when it returns."""
        name = self._random.choice(list(self.records))
        record = self.records[name]
        self._number += 1
        text = f"{name}.{self._number}"
        if record.document is None:
            made = document(TEMPLATE, name, SPACE, {"description": text}, annotations={COPY: text})
            await self._write(name, "ADDED", text, lambda: self._driver.create(TEMPLATE, made))
            return
        seen = record.document
        choice = self._random.random()
        if choice < 0.2:
            await self._write(name, "DELETED", "", lambda: self._driver.delete(TEMPLATE, name, SPACE))
        elif choice < 0.6:
            new = changed(seen, spec={"description": text}, annotations={COPY: text})
            await self._write(name, "MODIFIED", text, lambda: self._driver.update(TEMPLATE, new))
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
            await self._look_what_became(name, type_, text, changes=not isinstance(exc, OutOfSpace))
        record.attempt = None

    async def _look_what_became(self, name: str, type_: str, text: str, *, changes: bool) -> None:
        record, found = self.records[name], await self._look(name)
        now = "" if found is None else text_of(found)
        assert now in (record.text, text), f"{name} is {now!r}, neither {record.text!r} nor {text!r}"
        if now == text != record.text:
            assert changes, "a full disk was to change nothing"
            self._settle(record, type_, text, found)

    def _settle(self, record: Record, type_: str, text: str, found: Document | None) -> None:
        assert (found is None) == (type_ == "DELETED")
        # A removal shows the last state.
        record.history.append((type_, text or record.text))
        record.document = found

    async def _look(self, name: str) -> Document | None:
        try:
            return await patiently(lambda: self._driver.get(TEMPLATE, name, SPACE))
        except NotFound:
            return None


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The answer to a read, however often the server goes away meanwhile."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


class Follower:
    """Watches all objects from a version on, going on from the last one wherever the stream breaks."""

    def __init__(self, driver: StoreDriver, version: str) -> None:
        self._driver = driver
        self.version = version
        self.seen: list[tuple[int, str, str, str]] = []  # version, type, name, text
        self.resumed = 0

    async def run(self) -> None:
        """Until the last object appears."""
        while True:
            try:
                async for change in self._driver.watch(TEMPLATE, SPACE, version=self.version):
                    self.version = change.version
                    if self._take(change):
                        return
            except Unavailable:
                await asyncio.sleep(0.02)
            self.resumed += 1

    def _take(self, change: Change) -> bool:
        found = change.document
        if found is None:
            return False
        if found.name == END:
            return True
        self.seen.append((int(change.version), change.type, found.name, text_of(found)))
        return False


@dataclass
class Crowd:
    """Eight clients and two followers on one store, and what must hold about them."""

    clients: list[Client]
    followers: list[Follower]
    version: str  # of the store before the first write
    _drivers: list[StoreDriver]
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    _over: bool = False

    @classmethod
    async def on(cls, driver: Callable[[], StoreDriver], *, clients: int = 8, followers: int = 2) -> Crowd:
        first = driver()
        await first.create(NAMESPACE, document(NAMESPACE, SPACE))
        version = (await first.list(TEMPLATE, SPACE)).version
        drivers = [first, *(driver() for _ in range(clients + followers - 1))]
        return cls(
            [Client(each, f"c{number}") for number, each in enumerate(drivers[:clients])],
            [Follower(each, version) for each in drivers[clients:]],
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
    def records(self) -> dict[str, Record]:
        return {name: record for client in self.clients for name, record in client.records.items()}

    async def write(self) -> None:
        """All clients, until `enough`."""
        self._over = False
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(self._write(client))

    async def _write(self, client: Client) -> None:
        while not self._over:
            await client.step()
            async with self._moved:
                self._moved.notify_all()

    def enough(self) -> None:
        self._over = True

    async def moved(self, steps: int, *, acknowledged: bool = True) -> None:
        """Until so many more writes were acknowledged, or tried."""

        def count() -> int:
            return self.acknowledged + (0 if acknowledged else self.unanswered)

        goal = count() + steps
        async with asyncio.timeout(SECONDS), self._moved:
            await self._moved.wait_for(lambda: count() >= goal)

    async def check_now(self, driver: StoreDriver) -> None:
        """While clients write: everything that was acknowledged is there, or something later."""
        before = {name: len(record.history) for name, record in self.records.items()}
        listing = await patiently(lambda: driver.list(TEMPLATE, SPACE))
        found = {item.name: text_of(item) for item in listing.items}
        for name, record in self.records.items():
            # What it was when we asked, or became until the answer, or may be becoming.
            states = record.history[max(0, before[name] - 1) :]
            allowed = {"" if type_ == "DELETED" else text for type_, text in states} or {""}
            if before[name] == 0:
                allowed.add("")
            if record.attempt is not None:
                allowed.add(record.attempt)
            assert found.get(name, "") in allowed, name

    async def check_settled(self, driver: StoreDriver) -> None:
        """While nobody writes: the store holds exactly what the clients know, and nothing else."""
        listing = await patiently(lambda: driver.list(TEMPLATE, SPACE))
        found = {item.name: text_of(item) for item in listing.items if item.name != END}
        assert found == {name: record.text for name, record in self.records.items() if record.text}
        versions = [int(item.version) for item in listing.items]
        assert len(set(versions)) == len(versions)

    async def end(self, driver: StoreDriver) -> None:
        """The last object, by which followers know that they have seen everything."""
        made = document(TEMPLATE, END, SPACE, {"description": END}, annotations={COPY: END})
        await driver.create(TEMPLATE, made)

    def check_followers(self, *more: Follower) -> None:
        """Every follower saw every state of every object once, in order."""
        for follower in (*self.followers, *more):
            versions = [version for version, _, _, _ in follower.seen]
            assert versions == sorted(set(versions)), "versions come in order, each once"
            told: dict[str, list[tuple[str, str]]] = defaultdict(list)
            for _, type_, name, text in follower.seen:
                told[name].append((type_, text))
            assert dict(told) == {name: record.history for name, record in self.records.items() if record.history}

    def check_errors(self) -> None:
        """Whoever was told of a failure was told in one line, as 503 or 507."""
        for client in self.clients:
            for error in client.errors:
                assert error.status in (503, 507)
                assert "\n" not in str(error)

    async def close(self) -> None:
        for driver in self._drivers:
            await driver.close()
