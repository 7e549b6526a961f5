"""Leader election: of several replicas only the one that holds a Lease runs the controllers.

The leader renews the lease every second. It stops leading `deadline` seconds after the last renewal that was answered,
well before others may take the lease. A candidate takes it after seeing it unchanged for its whole duration on its own
clock, so clocks need not agree. A leader that shuts down releases the lease, and the next one starts at once.

Before each write the leader checks that its lease is recent enough (store/lease_fence.py). So two replicas can write at
the same time only if one of them pauses for longer than the margin, between the check and the write. Even then each
write carries the version it was decided from, and the node has the last word on devices: the write is refused, or a
start is wasted.
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
_RELEASE_SECONDS = 3.0  # how long a shutdown waits to release the lease


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds."""

    duration: int = 6  # how long a lease is valid without a renewal
    deadline: float = 4.0  # how long a leader goes on without an answer to its renewals
    interval: float = 1.0  # between two renewals, and between two attempts to take the lease


class LeaderElector:
    """Runs its work while it holds the lease, and waits while another replica does."""

    def __init__(
        self,
        store: Store,
        name: str,
        identity: str,
        timing: LeaseTiming = LeaseTiming(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._name = name
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._held: Lease | None = None
        self._renewed_at = 0.0  # when the last answered renewal was sent, on the monotonic clock
        self._acquiring = False  # a request for a free lease was sent; without an answer it may be ours
        self._observed: tuple[str, float] = ("", 0.0)  # the version that was last seen, and since when

    @property
    def is_leader(self) -> bool:
        """Whether it may write now. False after a pause that was too long, even before the renewal notices."""
        return self._held is not None and time.monotonic() - self._renewed_at < self._timing.deadline

    async def run(self, work: Work) -> None:
        """Runs until cancelled; then releases the lease."""
        try:
            while True:
                await self._acquire()
                log.info("leading", lease=self._name, identity=self._identity)
                await self._lead(work)
                log.warning("no longer leading", lease=self._name, identity=self._identity)
        finally:
            await asyncio.shield(self._release())

    async def _lead(self, work: Work) -> None:
        """Runs the work until the lease is lost."""
        renewing = asyncio.create_task(self._renew())
        token = MAY_WRITE.set(lambda: self.is_leader)
        tasks = [asyncio.create_task(coroutine) for coroutine in work()]  # each inherits the context variable
        MAY_WRITE.reset(token)
        try:
            await asyncio.wait((renewing, *tasks), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (renewing, *tasks):
                task.cancel()
            await asyncio.gather(renewing, *tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure

    async def _acquire(self) -> None:
        while self._held is None:
            try:
                await self._try_acquire()
            except PlatformError as exc:
                log.warning("cannot read the lease", lease=self._name, error=str(exc))
            if self._held is None:
                await asyncio.sleep(self._timing.interval)

    async def _try_acquire(self) -> None:
        """Takes the lease if it is free or expired."""
        asked = time.monotonic()
        try:
            seen = await self._store.get(Lease, self._name, SYSTEM_NAMESPACE)
        except NotFound:
            meta = Metadata(name=self._name, namespace=SYSTEM_NAMESPACE)
            asked = time.monotonic()
            self._acquiring = True
            with suppress(Exists):
                self._take(await self._store.create(Lease(metadata=meta, spec=self._lease_spec(None))), asked)
            self._acquiring = False
            return
        # The answer may have taken long. The lease may have been renewed until it arrived.
        answered = time.monotonic()
        if seen.metadata.version != self._observed[0]:
            self._observed = (seen.metadata.version, answered)
        free = not seen.spec.holder_identity or seen.spec.holder_identity == self._identity
        duration = max(seen.spec.lease_duration_seconds or 0, self._timing.duration)
        if free or asked - self._observed[1] >= duration:
            self._acquiring = True
            with suppress(Conflict):
                spec = self._lease_spec(seen.spec)
                self._take(await self._store.update(replace(seen, spec=spec), seen=seen), answered)
            self._acquiring = False

    def _take(self, lease: Lease, asked: float) -> None:
        self._held, self._renewed_at = lease, asked

    def _lease_spec(self, before: LeaseSpec | None) -> LeaseSpec:
        now = self._clock()
        transitions = 0 if before is None else (before.lease_transitions or 0) + 1
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._timing.duration,
            acquire_time=now,
            renew_time=now,
            lease_transitions=transitions,
        )

    async def _renew(self) -> None:
        """Renews the lease; returns when it is lost."""
        while self._held is not None:
            await asyncio.sleep(self._timing.interval)
            left = self._renewed_at + self._timing.deadline - time.monotonic()
            asked = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    spec = replace(self._held.spec, renew_time=self._clock())
                    self._take(await self._store.update(replace(self._held, spec=spec), seen=self._held), asked)
            except (Conflict, NotFound):
                # Perhaps by our own write whose answer was lost. Then it names us, and we take it again at once.
                self._held = None
            except (PlatformError, TimeoutError) as exc:
                if time.monotonic() - self._renewed_at >= self._timing.deadline:
                    log.warning("lease not renewed in time", lease=self._name, error=str(exc))
                    self._held = None

    async def _release(self) -> None:
        """Frees the lease, so that the next leader need not wait for it to expire."""
        held, self._held = self._held, None
        if held is None and not self._acquiring:
            return
        with suppress(PlatformError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._clear_holder(held)

    async def _clear_holder(self, held: Lease | None) -> None:
        while True:
            if held is None:
                held = await self._store.get(Lease, self._name, SYSTEM_NAMESPACE)
                if held.spec.holder_identity != self._identity:
                    return
            try:
                await self._store.update(replace(held, spec=replace(held.spec, holder_identity="")), seen=held)
                return
            except Conflict:
                held = None  # perhaps our own write that was cancelled: it may have arrived
