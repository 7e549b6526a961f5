"""The log of recent changes that all watchers of a driver share.

A watcher is a position in the log, not a queue of its own. So a hundred watchers need no more memory than one, and a
slow watcher delays no other. A watcher that falls behind the start of the log gets `Expired`, never a stream with a
gap.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aliquot.errors import Expired, Invalid
from aliquot.store.driver import AnyKind, Change
from aliquot.store.object_table import Entry
from aliquot.store.selectors import Selector, selectable_fields

# Reads entries that are no longer in memory: (kind, after, up to) -> entries. Raises Expired when they are gone.
Older = Callable[[str, int, int], Awaitable[Sequence[Entry]]]
# The newest revision that a reader may have seen although it has not reached this log yet.
Newest = Callable[[], Awaitable[int]]
# Kubernetes sends a bookmark about every minute. A shorter period costs one line per idle watch.
BOOKMARK_SECONDS = 15.0


class WatchLog:
    """The last `length` changes of each kind, and a future per kind that wakes its watchers."""

    def __init__(self, *, revision: int = 0, length: int = 10_000, bookmark_seconds: float = BOOKMARK_SECONDS) -> None:
        self.revision = revision  # of the newest change, over all kinds
        self.closed = False
        self._bookmark_seconds = bookmark_seconds
        self._length = length
        self._entries: dict[str, deque[Entry]] = defaultdict(deque)
        self._floors: dict[str, int] = defaultdict(lambda: revision)  # entries up to this revision are not in memory
        self._wakeups: dict[str, asyncio.Future[None]] = {}

    def append(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entries_of_kind = self._entries[entry.kind]
            entries_of_kind.append(entry)
            if len(entries_of_kind) > self._length:
                self._floors[entry.kind] = entries_of_kind.popleft().revision
            self.revision = entry.revision
        for kind in {entry.kind for entry in entries}:
            self._wake(kind)

    def close(self) -> None:
        self.closed = True
        for kind in list(self._wakeups):
            self._wake(kind)

    async def follow(
        self, kind: AnyKind, namespace: str | None, version: str, selector: Selector, older: Older, newest: Newest
    ) -> AsyncIterator[Change]:
        """Yields every change of a kind after `version`, filtered for one watcher."""
        position = _revision(version)
        if position > self.revision and position > await newest():
            raise Expired(f"version {version} was not issued by this store", hint="list again")
        while not self.closed:
            wakeup = self._wakeups.setdefault(kind.name, asyncio.get_running_loop().create_future())
            upto = self.revision
            entries = self._after(kind.name, position)
            if entries is None:
                entries = await older(kind.name, position, upto)
            for entry in entries:
                if change := _filtered(kind, namespace, selector, entry):
                    yield change
            position = max(position, upto)
            if entries:
                continue
            done, _ = await asyncio.wait((wakeup,), timeout=self._bookmark_seconds)
            if not done:
                # Other kinds may have changed. The bookmark keeps an idle watcher from falling behind the log.
                position = max(position, self.revision)
                yield Change("BOOKMARK", str(position))

    def _after(self, kind: str, position: int) -> Sequence[Entry] | None:
        """Entries of a kind after a position, or None when they are no longer in memory."""
        if position < self._floors[kind]:
            return None
        entries = self._entries.get(kind)
        if not entries or entries[-1].revision <= position:
            return []
        # Nearly always the last few entries, so walk back from the end.
        newest: list[Entry] = []
        for entry in reversed(entries):
            if entry.revision <= position:
                break
            newest.append(entry)
        newest.reverse()
        return newest

    def _wake(self, kind: str) -> None:
        wakeup = self._wakeups.pop(kind, None)
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)


async def no_older_entries(kind: str, after: int, upto: int) -> Sequence[Entry]:
    raise expired(after)


def expired(position: int) -> Expired:
    return Expired(f"version {position} is too old to watch from", hint="list again and watch from there")


def _filtered(kind: AnyKind, namespace: str | None, selector: Selector, entry: Entry) -> Change | None:
    """The change as one watcher sees it: a modification may bring an object into its selection or take it out."""
    document, version = entry.document, str(entry.revision)
    if namespace is not None and document.namespace != namespace:
        return None
    if not selector:
        return Change(entry.type, version, document)
    was = entry.was is not None and selector.matches(entry.was)
    if entry.type == "DELETED":
        return Change("DELETED", version, document) if was else None
    if selector.matches(selectable_fields(kind, document.data)):
        return Change("MODIFIED" if was else "ADDED", version, document)
    return Change("DELETED", version, document) if was else None


def _revision(version: str) -> int:
    try:
        return int(version)
    except ValueError:
        raise Invalid(f"{version!r} is not a version of this store", hint="use the one a list gave") from None
