"""Who is near whom: rules that want tasks with some labels in the same part of the cluster, or in none of it.

A part is all nodes with one value of a node label. Per rule the tasks that match it are counted by part, and so are the
tasks that made the rule: who refuses neighbours is not given any by others either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aliquot.planner.model import Job, PodAffinityTerm
from aliquot.planner.placement.node_state import NodeState

if TYPE_CHECKING:
    from aliquot.planner.jobs import TaskSlot
    from aliquot.planner.placement.task_class import TaskClass


class PodAffinityIndex:
    def __init__(self) -> None:
        self.watched: dict[PodAffinityTerm, dict[str, int]] = {}  # tasks that match, by part
        self._refusing: dict[PodAffinityTerm, dict[str, int]] = {}  # tasks that want none of those near, by part

    def watch(self, rule: PodAffinityTerm | None, refusing: bool = False) -> None:
        """Before anybody enters."""
        if rule is not None:
            self.watched.setdefault(rule, defaultdict(int))
            if refusing:
                self._refusing.setdefault(rule, defaultdict(int))

    def refuses(self, rule: PodAffinityTerm) -> bool:
        """Whether it is known who refuses such neighbours."""
        return rule in self._refusing

    def enter(self, member: TaskSlot, sign: int = 1) -> None:
        if member.node is not None:
            self.count(member.job.source, member.node, sign)

    def count(self, job: Job, node: NodeState, sign: int = 1) -> None:
        for rule, counts in self.watched.items():
            part = node.source.labels.get(rule.key)
            if part is not None and matches(rule, job.labels):
                counts[part] += sign
        if job.pod_anti_affinity is not None:
            part = node.source.labels.get(job.pod_anti_affinity.key)
            if part is not None:
                self._refusing[job.pod_anti_affinity][part] += sign

    def leave(self, member: TaskSlot) -> None:
        self.enter(member, -1)

    def allows(self, task_class: TaskClass, node: NodeState) -> bool:
        labels = node.source.labels
        pod_affinity, pod_anti_affinity = task_class.pod_affinity, task_class.pod_anti_affinity
        if pod_affinity is not None:
            part = labels.get(pod_affinity.key)
            if part is None:
                return False
            counts = self.watched[pod_affinity]
            # The first of a group that wants to be together has nobody to be with yet.
            first = matches(pod_affinity, task_class.labels) and not any(counts.values())
            if not counts[part] and not first:
                return False
        if pod_anti_affinity is not None:
            part = labels.get(pod_anti_affinity.key)
            if part is not None and self.watched[pod_anti_affinity][part]:
                return False
        for rule, counts in self._refusing.items():
            if matches(rule, task_class.labels):
                part = labels.get(rule.key)
                if part is not None and counts[part]:
                    return False
        return True


def matches(rule: PodAffinityTerm, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in rule.labels)
