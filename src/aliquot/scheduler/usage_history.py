"""What was held over time, so that fairness can look back.

A history is added up to a moment; since then what the status says is held has been held. So it need be written only
when that changes, an idle or a steady project costs nothing, and a platform that was killed has lost nothing: the next
one reads how much was held since when.

Entries are `end:gpu:cpu:memory`: what was held from the end of the entry before to this one, in thousandths of
GPU-seconds and core-seconds and in MiB-seconds. They grow longer with age (at most a sixteenth of it), so that weeks
take a few hundred entries while the last minutes stay exact.
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

Triple = tuple[float, float, float]
KEPT_SECONDS = 5 * 7 * 86_400
DEFAULT_WINDOW = 7 * 86_400
_FINENESS = 16
_LOOKS = 1000  # in one window: how often past use is looked at again, at most once in a second, at least in a minute
_MIB = 1 << 20


class Entry(NamedTuple):
    end: float
    gpu: int
    cpu: int
    memory: int

    @classmethod
    def of(cls, end: float, held: Triple, seconds: float) -> Entry:
        return cls(end, *(round(each * seconds) for each in held))


def parse_history(text: str) -> list[Entry]:
    """Nothing of what we cannot read: a history that is lost makes sharing a little less fair for a while."""
    found = []
    try:
        for word in text.split():
            end, gpu, cpu, memory = word.split(":")
            found.append(Entry(float(end), int(gpu), int(cpu), int(memory)))
    except ValueError:
        return []
    return found


def extend_history(text: str, held: Amounts, now: float) -> str:
    """The history up to now, during which `held` was held since its end. The first entry only says where it begins."""
    entries = parse_history(text)
    if not entries:
        return _text([Entry(now, 0, 0, 0)])
    seconds = now - entries[-1].end
    if seconds <= 0:  # a clock that was put back
        return text
    entries.append(Entry.of(now, _triple(held), seconds))
    return _text(_compact(entries, now))


def _text(entries: Iterable[Entry]) -> str:
    return " ".join(f"{one.end:.3f}:{one.gpu}:{one.cpu}:{one.memory}" for one in entries)


def _compact(entries: Sequence[Entry], now: float) -> list[Entry]:
    """Put together what is old enough to be told coarsely, and forget what nobody looks back to."""
    kept: list[Entry] = []
    for one in entries:
        if one.end < now - KEPT_SECONDS:
            kept = [Entry(one.end, 0, 0, 0)]
        elif len(kept) > 1 and one.end - kept[-2].end <= (now - kept[-2].end) / _FINENESS:
            last = kept.pop()
            kept.append(Entry(one.end, last.gpu + one.gpu, last.cpu + one.cpu, last.memory + one.memory))
        else:
            kept.append(one)
    return kept


def _triple(held: Amounts) -> Triple:
    return (held.gpu or 0, held.cpu or 0, (held.memory or 0) / _MIB)


def weighted_usage(text: str, held: Amounts, now: float, since: float, half_life: float | None) -> Triple:
    """What was held from `since` until now, in thousandths and MiB times seconds; half as much for each half-life that
    it is in the past."""
    entries = parse_history(text)
    if not entries:
        return (0, 0, 0)
    spans = list(pairwise(entries))
    if now > entries[-1].end:
        spans.append((entries[-1], Entry.of(now, _triple(held), now - entries[-1].end)))
    sums = [0.0, 0.0, 0.0]
    for before, one in spans:
        length, begin = one.end - before.end, max(before.end, since)
        if length > 0 and begin < one.end:
            factor = _seconds(now - one.end, now - begin, half_life) / length
            for r in range(3):
                sums[r] += one[r + 1] * factor
    return (sums[0], sums[1], sums[2])


def _seconds(near: float, far: float, half_life: float | None) -> float:
    """How many seconds a stretch counts that lies between two distances in the past."""
    if not half_life:
        return far - near
    return float(half_life / log(2) * (0.5 ** (near / half_life) - 0.5 ** (far / half_life)))


def past_usage(projects: Iterable[Project], pools: Iterable[NodePool], rule: PastUse, now: float) -> dict[str, Triple]:
    """Each project's use as a part of all there was, in the window of a policy; only of those that had some."""
    window = rule.window or DEFAULT_WINDOW
    since = now // window * window if rule.window_type == "tumbling" else now - window
    had = [weighted_usage(pool.status.history, pool.status.total, now, since, rule.half_life) for pool in pools]
    all_ = [sum(one[r] for one in had) for r in range(3)]
    found = {}
    for project in projects:
        status = project.status
        used = weighted_usage(status.history, status.allocated, now, since, rule.half_life)
        if any(used):
            gpu, cpu, memory = (min(1.0, one / of) if of else 0.0 for one, of in zip(used, all_, strict=True))
            found[project.metadata.name] = (gpu, cpu, memory)
    return found


def usage_rule(policies: Iterable[SchedulingPolicy]) -> PastUse | None:
    """How past use counts: as the first policy (by name) says that lets it count at all."""
    rules = [one.spec.usage for one in sorted(policies, key=lambda one: one.metadata.name)]
    return next((rule for rule in rules if rule.weight > 0), None)


def refresh_seconds(rule: PastUse) -> float:
    """Seconds for which past use is taken as it was last seen."""
    return min(max((rule.window or DEFAULT_WINDOW) / _LOOKS, 1.0), 60.0)


def with_past_usage(queues: Iterable[Queue], past: dict[str, Triple]) -> list[Queue]:
    """Queues with their past use: a department's is that of its projects."""
    found = {queue.name: queue for queue in queues}
    sums: dict[str, Triple] = {}
    for name, used in past.items():
        while name in found:
            before = sums.get(name, (0, 0, 0))
            sums[name] = (before[0] + used[0], before[1] + used[1], before[2] + used[2])
            name = found[name].parent
    return [replace(queue, usage=sums[name]) if name in sums else queue for name, queue in found.items()]
