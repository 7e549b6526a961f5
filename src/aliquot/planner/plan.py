"""What was decided, and why. Reasons are values: they end up in front of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from aliquot.planner.model import NOTHING, Amount, DeviceShare


class Verdict(Enum):
    NOT_NOW = "not-now"  # something may end, or be stopped, and then it fits
    NEVER = "never"  # not on these nodes, whoever leaves


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job does not start: one word for programs, a sentence for people, and the facts behind it."""

    code: str
    verdict: Verdict
    text: str
    step: str = "allocate"
    missing: Amount = NOTHING  # how much more would be needed
    queue: str = ""  # whose quota, limit or share it is about
    resource: str = ""
    node: str = ""  # the node that came nearest
    nodes: int = 0  # how many nodes said so
    holders: tuple[str, ...] = ()  # jobs that have what it waits for
    until: float | None = None  # when this reason ends by itself, where that is known


@dataclass(frozen=True, slots=True)
class Placement:
    node: str
    shares: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Bind:
    """Starts now."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Nomination:
    """Will start here, on what is being released."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Eviction:
    """Stops. With `to` it is moved there in the same plan, at once or (`nominated`) when that place is free."""

    job: str
    task: str
    node: str
    rule: str  # the step that did it: consolidate, reclaim, preempt or stale-gang
    text: str
    by: str = ""  # the job that gets the place; empty for a stale gang
    to: Placement | None = None
    nominated: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they were taken; refusals of every job that goes on waiting, by job."""

    binds: tuple[Bind, ...] = ()
    nominations: tuple[Nomination, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)
    fair_shares: Mapping[str, Mapping[str, Amount]] = field(default_factory=dict)  # fair share by pool and queue
