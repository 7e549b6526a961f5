"""What the planner returns: binds, nominations, evictions, and the refusals that users see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from aliquot.planner.model import NOTHING, Amount, DeviceShare


class Verdict(Enum):
    NOT_NOW = "not-now"  # it may fit when a task ends or is evicted
    NEVER = "never"  # it does not fit on these nodes even when they are empty


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job does not start: a code for programs, a sentence for people, and the facts behind it."""

    code: str
    verdict: Verdict
    text: str
    step: str = "allocate"
    missing: Amount = NOTHING  # how much more would be needed
    queue: str = ""  # the queue whose quota, limit or fair share it is about
    resource: str = ""
    node: str = ""  # the node that lacks least
    nodes: int = 0  # how many nodes were considered
    holders: tuple[str, ...] = ()  # jobs that hold what it waits for
    until: float | None = None  # when this reason ceases to apply, where that is known


@dataclass(frozen=True, slots=True)
class Placement:
    node: str
    shares: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    """A task starts now."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Nomination:
    """A task will start on this node when the devices are released."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Eviction:
    """A running task stops. With `to` it is moved there in the same plan, at once or (`nominated`) when the devices are
    released."""

    job: str
    task: str
    node: str
    rule: str  # the step: consolidate, reclaim, preempt or stale-gang
    text: str
    by: str = ""  # the job that it is evicted for; empty for a stale gang
    to: Placement | None = None
    nominated: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Evictions are in the order in which they were decided. Refusals are by job, for every job that still waits."""

    binds: tuple[Bind, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)
    fair_shares: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)  # by pool and queue
