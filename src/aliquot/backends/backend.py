"""What runs the pods, as the rest of the platform sees it: this machine's agent, or a cluster's kubelets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.scheduler.binder import Binder
from aliquot.scheduler.scheduling_context import SchedulingContext
from aliquot.streams import Streams

Run = Callable[[], Coroutine[Any, Any, None]]


async def _nobody() -> None:
    return


@dataclass(frozen=True, slots=True)
class Backend:
    """Without anything in it: nobody runs pods."""

    hands: Binder | None = None  # None: the store's own
    streams: Streams | None = None
    around: SchedulingContext | None = None
    # Gives users access to what is below us; None: there is nothing to give access to.
    kubeconfigs: Any = None
    # What `aliquot status` shows beside the objects.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Run as long as the process does.
    always: tuple[Coroutine[Any, Any, None], ...] = ()
    # Decide what should be, so only one process may run them.
    deciding: tuple[Run, ...] = ()
    # Returns when pods may come.
    ready: Run = _nobody
    # Ends every job, and returns when they have ended.
    stop_jobs: Run = _nobody
