"""Usage over time, so that fair share can take the past into account.

A history is a text of entries that ends at some time. After the last entry, usage equals `status.allocated`. So the
history is written only when the allocation changes, an idle or steady project costs nothing, and a restart loses
nothing: the next process reads how much was held since when.

An entry is `end:gpu:cpu:memory`: what was held from the end of the entry before to this one, in thousandths of
GPU-seconds and core-seconds and in MiB-seconds. Entries are merged as they grow old (an entry spans at most a sixteenth
of its age), so that weeks take a few hundred entries while the last minutes stay exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import NamedTuple

from aliquot.api import Amounts, NodePool, Project, SchedulingPolicy
from aliquot.api.scheduling_policy import PastUse
from aliquot.planner import Queue

Triple = tuple[float, float, float]  # GPU, CPU, memory
KEPT_SECONDS = 5 * 7 * 86_400
DEFAULT_WINDOW = 7 * 86_400
_FINENESS = 16
_REFRESHES_PER_WINDOW = 1000  # but at most one in a second, and at least one in a minute
_MIB = 1 << 20


class Entry(NamedTuple):
    end: float
    gpu: int
    cpu: int
    memory: int

    @classmethod
    def of(cls, end: float, held: Triple, seconds: float) -> Entry:
        return cls(end, *(round(amount * seconds) for amount in held))


def parse_history(text: str) -> list[Entry]:
    """Empty when the text cannot be read: without its history a project is treated a little less fairly for a while."""
    entries = []
    try:
        for word in text.split():
            end, gpu, cpu, memory = word.split(":")
            entries.append(Entry(float(end), int(gpu), int(cpu), int(memory)))
    except ValueError:
        return []
    return entries


def extend_history(text: str, held: Amounts, now: float) -> str:
    """The history up to now, with `held` as the usage since its end. The first entry marks the beginning only."""
    entries = parse_history(text)
    if not entries:
        return _text([Entry(now, 0, 0, 0)])
    seconds = now - entries[-1].end
    if seconds <= 0:  # the clock was set back
        return text
    entries.append(Entry.of(now, _triple(held), seconds))
    return _text(_compact(entries, now))


def _text(entries: Iterable[Entry]) -> str:
    return " ".join(f"{entry.end:.3f}:{entry.gpu}:{entry.cpu}:{entry.memory}" for entry in entries)


def _compact(entries: Sequence[Entry], now: float) -> list[Entry]:
    """Merges old entries, and drops those that no window reaches back to."""
    kept: list[Entry] = []
    for entry in entries:
        if entry.end < now - KEPT_SECONDS:
            kept = [Entry(entry.end, 0, 0, 0)]
        elif len(kept) > 1 and entry.end - kept[-2].end <= (now - kept[-2].end) / _FINENESS:
            last = kept.pop()
            kept.append(Entry(entry.end, last.gpu + entry.gpu, last.cpu + entry.cpu, last.memory + entry.memory))
        else:
            kept.append(entry)
    return kept


def _triple(held: Amounts) -> Triple:
    return (held.gpu or 0, held.cpu or 0, (held.memory or 0) / _MIB)


def weighted_usage(text: str, held: Amounts, now: float, since: float, half_life: float | None) -> Triple:
    """What was held from `since` until now, in thousandths and MiB times seconds. Usage counts half as much for each
    half-life that it lies in the past."""
    entries = parse_history(text)
    if not entries:
        return (0, 0, 0)
    spans = list(pairwise(entries))
    if now > entries[-1].end:
        spans.append((entries[-1], Entry.of(now, _triple(held), now - entries[-1].end)))
    sums = [0.0, 0.0, 0.0]
    for before, entry in spans:
        length, begin = entry.end - before.end, max(before.end, since)
        if length > 0 and begin < entry.end:
            factor = _weighted_seconds(now - entry.end, now - begin, half_life) / length
            for r in range(3):
                sums[r] += entry[r + 1] * factor
    return (sums[0], sums[1], sums[2])


def _weighted_seconds(near: float, far: float, half_life: float | None) -> float:
    """How many seconds a span counts that lies between two distances in the past."""
    if not half_life:
        return far - near
    return float(half_life / log(2) * (0.5 ** (near / half_life) - 0.5 ** (far / half_life)))


def past_usage(projects: Iterable[Project], pools: Iterable[NodePool], rule: PastUse, now: float) -> dict[str, Triple]:
    """Each project's usage in the policy's window, as a part of all that there was. Idle projects are left out."""
    window = rule.window or DEFAULT_WINDOW
    since = now // window * window if rule.window_type == "tumbling" else now - window
    capacities = [weighted_usage(pool.status.history, pool.status.total, now, since, rule.half_life) for pool in pools]
    capacity = [sum(each[r] for each in capacities) for r in range(3)]
    by_project = {}
    for project in projects:
        status = project.status
        used = weighted_usage(status.history, status.allocated, now, since, rule.half_life)
        if any(used):
            gpu, cpu, memory = (min(1.0, u / c) if c else 0.0 for u, c in zip(used, capacity, strict=True))
            by_project[project.metadata.name] = (gpu, cpu, memory)
    return by_project


def usage_rule(policies: Iterable[SchedulingPolicy]) -> PastUse | None:
    """How past usage counts: by the first policy (by name) that gives it any weight."""
    rules = [policy.spec.usage for policy in sorted(policies, key=lambda policy: policy.metadata.name)]
    return next((rule for rule in rules if rule.weight > 0), None)


def refresh_seconds(rule: PastUse) -> float:
    """How long the scheduler uses past usage before it computes it again."""
    return min(max((rule.window or DEFAULT_WINDOW) / _REFRESHES_PER_WINDOW, 1.0), 60.0)


def with_past_usage(queues: Iterable[Queue], by_project: dict[str, Triple]) -> list[Queue]:
    """The queues with their past usage. A department's is the sum of its projects'."""
    by_name = {queue.name: queue for queue in queues}
    sums: dict[str, Triple] = {}
    for name, used in by_project.items():
        while name in by_name:
            before = sums.get(name, (0, 0, 0))
            sums[name] = (before[0] + used[0], before[1] + used[1], before[2] + used[2])
            name = by_name[name].parent
    return [replace(queue, usage=sums[name]) if name in sums else queue for name, queue in by_name.items()]
