"""What was decided, and why. Reasons are values: they end up in front of the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from aliquot.core.model import Share


class Verdict(Enum):
    NOT_NOW = "not-now"  # something may end, or be stopped, and then it fits
    NEVER = "never"  # not on these nodes, whoever leaves


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job does not start: one word for programs, a sentence for people, and how much is missing."""

    code: str
    verdict: Verdict
    text: str
    step: str = "allocate"
    missing_gpu: int = 0
    nodes: int = 0  # how many nodes said so


@dataclass(frozen=True, slots=True)
class Bind:
    job: str
    task: str
    node: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    binds: tuple[Bind, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)  # by job
