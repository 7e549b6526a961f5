"""The recent changes, shared by all watchers.

One log per body instead of a queue per watcher: a watcher is a position in it, so a hundred of them cost no more
memory than one, and a slow one holds up nobody. Who falls behind the log's beginning is told so (`Expired`), never
given a stream with a hole.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aliquot.errors import Expired, Invalid
from aliquot.store.driver import AnyKind, Change
from aliquot.store.object_table import Entry
from aliquot.store.selectors import Selector, marks_of

# Reads older entries than memory holds: (kind, after, up to) -> entries, or Expired.
Older = Callable[[str, int, int], Awaitable[Sequence[Entry]]]
# The newest change that a reader may have met already, though this log was not told of it yet.
Newest = Callable[[], Awaitable[int]]
# Kubernetes sends one about every minute; a shorter time costs a line per idle watch.
BOOKMARK_SECONDS = 15.0


class WatchLog:
    """The last `length` changes of each kind, and a bell that rings when there are more."""

    def __init__(self, *, revision: int = 0, length: int = 10_000, bookmark_seconds: float = BOOKMARK_SECONDS) -> None:
        self.revision = revision  # the newest change there is, of any kind
        self.closed = False
        self._bookmark_seconds = bookmark_seconds
        self._length = length
        self._entries: dict[str, deque[Entry]] = defaultdict(deque)
        self._floors: dict[str, int] = defaultdict(lambda: revision)  # entries up to here are not in memory
        self._bells: dict[str, asyncio.Future[None]] = {}

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            kept = self._entries[entry.kind]
            kept.append(entry)
            if len(kept) > self._length:
                self._floors[entry.kind] = kept.popleft().revision
            self.revision = entry.revision
        for kind in {entry.kind for entry in entries}:
            self._ring(kind)

    def close(self) -> None:
        self.closed = True
        for kind in list(self._bells):
            self._ring(kind)

    async def follow(
        self, kind: AnyKind, namespace: str | None, version: str, selector: Selector, older: Older, newest: Newest
    ) -> AsyncIterator[Change]:
        """Every change of a kind after `version`, as one watcher sees it."""
        position = _revision(version)
        if position > self.revision and position > await newest():
            raise Expired(f"version {version} is not of this store's life", hint="list again")
        while not self.closed:
            bell = self._bells.setdefault(kind.name, asyncio.get_running_loop().create_future())
            upto = self.revision
            entries = self._after(kind.name, position)
            if entries is None:
                entries = await older(kind.name, position, upto)
            for entry in entries:
                if change := _seen(kind, namespace, selector, entry):
                    yield change
            position = max(position, upto)
            if entries:
                continue
            done, _ = await asyncio.wait((bell,), timeout=self._bookmark_seconds)
            if not done:
                # This kind was quiet, others may have moved on: an idle watcher must not fall behind them.
                position = max(position, self.revision)
                yield Change("BOOKMARK", str(position))

    def _after(self, kind: str, position: int) -> Sequence[Entry] | None:
        """Entries of a kind after a position; `None` when memory no longer goes back that far."""
        if position < self._floors[kind]:
            return None
        entries = self._entries.get(kind)
        if not entries or entries[-1].revision <= position:
            return []
        # Nearly always the last few: walk back instead of searching a deque's middle.
        newest: list[Entry] = []
        for entry in reversed(entries):
            if entry.revision <= position:
                break
            newest.append(entry)
        newest.reverse()
        return newest

    def _ring(self, kind: str) -> None:
        bell = self._bells.pop(kind, None)
        if bell is not None and not bell.done():
            bell.set_result(None)


async def nothing_older(kind: str, after: int, upto: int) -> Sequence[Entry]:
    raise fell_behind(after)


def fell_behind(position: int) -> Expired:
    return Expired(f"version {position} is too old to watch from", hint="list again and watch from there")


def _seen(kind: AnyKind, namespace: str | None, selector: Selector, entry: Entry) -> Change | None:
    """What a change means to one watcher: an object may enter or leave its selection by being modified."""
    document, version = entry.document, str(entry.revision)
    if namespace is not None and document.namespace != namespace:
        return None
    if not selector:
        return Change(entry.type, version, document)
    was = entry.was is not None and selector.matches(entry.was)
    if entry.type == "DELETED":
        return Change("DELETED", version, document) if was else None
    if selector.matches(marks_of(kind, document.data)):
        return Change("MODIFIED" if was else "ADDED", version, document)
    return Change("DELETED", version, document) if was else None


def _revision(version: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise Invalid(f"{version!r} is not a version of this store", hint="use the one a list gave") from None
