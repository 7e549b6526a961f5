"""Which of several processes decides: the one that holds a Lease.

The holder renews it again and again, and stops to decide well before others may take it: `deadline` after its last
renewal that was answered. Others take it when they have seen it unchanged for its whole duration, measured by their own
clock, so that clocks need not agree. Who is asked to stop gives it back, and the next one starts at once.

Every write of the work asks first whether the lease is still young enough (store/fence.py). So two write at a time only
if a process stands still for longer than the margin between that question and the write. Each write says which version
it was decided from, and the node grants devices last: such a write is refused, or wastes a start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from aliquot.api import Lease, Metadata
from aliquot.api.lease import LeaseSpec
from aliquot.errors import Conflict, Exists, NotFound, PlatformError
from aliquot.labels import SYSTEM_NAMESPACE
from aliquot.store.lease_fence import MAY_WRITE
from aliquot.store.typed_store import Store

log = structlog.get_logger()
Work = Callable[[], list[Coroutine[Any, Any, None]]]
_PATIENCE_S = 3.0  # of one who stops, to give back what it holds


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds."""

    duration: int = 6  # that a lease holds without being renewed
    deadline: float = 4.0  # that a leader goes on without an answer to its renewals
    every: float = 1.0  # between renewals, and between looks of those who wait


class LeaderElector:
    """Runs its work while it holds the lease; waits while somebody else does."""

    def __init__(
        self,
        store: Store,
        name: str,
        identity: str,
        pace: LeaseTiming = LeaseTiming(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._name = name
        self._identity = identity
        self._pace = pace
        self._clock = clock
        self._held: Lease | None = None
        self._renewed = 0.0  # when the last answered renewal was sent, on our own clock
        self._asking = False  # for a lease that nobody held; without an answer it may be ours
        self._seen: tuple[str, float] = ("", 0.0)  # the version that was last seen, and since when

    @property
    def is_leader(self) -> bool:
        """Whether it may decide now: not when it stood still for too long, even if it has not noticed yet."""
        return self._held is not None and time.monotonic() - self._renewed < self._pace.deadline

    async def run(self, work: Work) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._until_held()
                log.info("leading", lease=self._name, identity=self._identity)
                await self._term(work)
                log.warning("no longer leading", lease=self._name, identity=self._identity)
        finally:
            await asyncio.shield(self._release())

    async def _term(self, work: Work) -> None:
        """The work, for as long as the lease is ours."""
        renewing = asyncio.create_task(self._renew())
        before = MAY_WRITE.set(lambda: self.is_leader)
        tasks = [asyncio.create_task(one) for one in work()]  # each takes that along
        MAY_WRITE.reset(before)
        try:
            await asyncio.wait((renewing, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (renewing, *tasks):
                task.cancel()
            await asyncio.gather(renewing, *tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure

    async def _until_held(self) -> None:
        while self._held is None:
            try:
                await self._try()
            except PlatformError as exc:
                log.warning("cannot look who leads", lease=self._name, error=str(exc))
            if self._held is None:
                await asyncio.sleep(self._pace.every)

    async def _try(self) -> None:
        """Take the lease if nobody holds it."""
        asked = time.monotonic()
        try:
            seen = await self._store.get(Lease, self._name, SYSTEM_NAMESPACE)
        except NotFound:
            place = Metadata(name=self._name, namespace=SYSTEM_NAMESPACE)
            asked = time.monotonic()
            self._asking = True
            with suppress(Exists):
                self._take(await self._store.create(Lease(metadata=place, spec=self._claim(None))), asked)
            self._asking = False
            return
        # The answer may have taken long, and the lease may have been renewed until it came.
        heard = time.monotonic()
        if seen.metadata.version != self._seen[0]:
            self._seen = (seen.metadata.version, heard)
        free = not seen.spec.holder_identity or seen.spec.holder_identity == self._identity
        patience = max(seen.spec.lease_duration_seconds or 0, self._pace.duration)
        if free or asked - self._seen[1] >= patience:
            self._asking = True
            with suppress(Conflict):
                self._take(await self._store.update(replace(seen, spec=self._claim(seen.spec)), seen=seen), heard)
            self._asking = False

    def _take(self, lease: Lease, asked: float) -> None:
        self._held, self._renewed = lease, asked

    def _claim(self, before: LeaseSpec | None) -> LeaseSpec:
        now = self._clock()
        changes = 0 if before is None else (before.lease_transitions or 0) + 1
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._pace.duration,
            acquire_time=now,
            renew_time=now,
            lease_transitions=changes,
        )

    async def _renew(self) -> None:
        """Returns when the lease is lost."""
        while self._held is not None:
            await asyncio.sleep(self._pace.every)
            left = self._renewed + self._pace.deadline - time.monotonic()
            asked = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    spec = replace(self._held.spec, renew_time=self._clock())
                    self._take(await self._store.update(replace(self._held, spec=spec), seen=self._held), asked)
            except (Conflict, NotFound):
                # Perhaps our own write, whose answer was lost: then it says our name, and is ours again at once.
                self._held = None
            except (PlatformError, TimeoutError) as exc:
                if time.monotonic() - self._renewed >= self._pace.deadline:
                    log.warning("the lease could not be renewed in time", lease=self._name, error=str(exc))
                    self._held = None

    async def _release(self) -> None:
        """So that the next one need not wait."""
        held, self._held = self._held, None
        if held is None and not self._asking:
            return
        with suppress(PlatformError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._give_back(held)

    async def _give_back(self, held: Lease | None) -> None:
        while True:
            if held is None:
                held = await self._store.get(Lease, self._name, SYSTEM_NAMESPACE)
                if held.spec.holder_identity != self._identity:
                    return
            try:
                await self._store.update(replace(held, spec=replace(held.spec, holder_identity="")), seen=held)
                return
            except Conflict:
                held = None  # perhaps by our own write that was broken off: it may have arrived
