"""The interface between the platform and what runs its pods: the agent of this machine, or a cluster's kubelets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.auth.kubeconfigs import KubeconfigIssuer
from aliquot.scheduler.binder import Binder
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.streams import Streams

Run = Callable[[], Coroutine[Any, Any, None]]


async def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Backend:
    """Every field has a default: `Backend()` runs no pods."""

    # None: bindings and deletions are plain writes to the store.
    binder: Binder | None = None
    streams: Streams | None = None
    scheduling_context: SchedulingContext | None = None
    # Issues kubeconfigs to users; None where there is no cluster below us.
    kubeconfigs: KubeconfigIssuer | None = None
    # Shown by `aliquot status` beside the objects.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Coroutines that run as long as the process does, in every replica.
    background: tuple[Coroutine[Any, Any, None], ...] = ()
    # Controllers; only the leading replica runs them.
    controllers: tuple[Run, ...] = ()
    # Returns when the backend accepts pods.
    ready: Run = _nothing
    # Stops every job, and returns when all have stopped.
    stop_jobs: Run = _nothing
