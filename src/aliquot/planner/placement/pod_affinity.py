"""Pod affinity and anti-affinity: tasks that must, or must not, share a topology domain with tasks of given labels.

A topology domain is all nodes with one value of a node label. For each term the index counts the tasks that match it by
domain, and the tasks that declare it as anti-affinity. Anti-affinity is symmetric, as in Kubernetes: a task whose
labels match the anti-affinity of a running task is not placed beside it.
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
        self.terms: dict[PodAffinityTerm, dict[str, int]] = {}  # matching tasks by domain
        self._anti_affinity: dict[PodAffinityTerm, dict[str, int]] = {}  # tasks that declare the term, by domain

    def watch(self, term: PodAffinityTerm | None, anti_affinity: bool = False) -> None:
        """Count for this term. Call it before any task is added."""
        if term is not None:
            self.terms.setdefault(term, defaultdict(int))
            if anti_affinity:
                self._anti_affinity.setdefault(term, defaultdict(int))

    def watches_anti_affinity(self, term: PodAffinityTerm) -> bool:
        return term in self._anti_affinity

    def applies_to(self, task_class: TaskClass) -> bool:
        """Whether a node can be refused to a task of this class because of the tasks near it."""
        return bool(task_class.pod_affinity or task_class.pod_anti_affinity or self.terms)

    def add(self, member: TaskSlot) -> None:
        if member.node is not None:
            self.count(member.job.source, member.node)

    def remove(self, member: TaskSlot) -> None:
        if member.node is not None:
            self.count(member.job.source, member.node, -1)

    def count(self, job: Job, node: NodeState, sign: int = 1) -> None:
        """Count one task of a job on a node; with sign -1 take it back."""
        for term, counts in self.terms.items():
            domain = node.source.labels.get(term.key)
            if domain is not None and matches(term, job.labels):
                counts[domain] += sign
        if job.pod_anti_affinity is not None:
            domain = node.source.labels.get(job.pod_anti_affinity.key)
            if domain is not None:
                self._anti_affinity[job.pod_anti_affinity][domain] += sign

    def allows(self, task_class: TaskClass, node: NodeState) -> bool:
        labels = node.source.labels
        affinity, anti_affinity = task_class.pod_affinity, task_class.pod_anti_affinity
        if affinity is not None:
            domain = labels.get(affinity.key)
            if domain is None:
                return False
            counts = self.terms[affinity]
            # The first task of a group with affinity to itself has no other to be near yet.
            first = matches(affinity, task_class.labels) and not any(counts.values())
            if not counts[domain] and not first:
                return False
        if anti_affinity is not None:
            domain = labels.get(anti_affinity.key)
            if domain is not None and self.terms[anti_affinity][domain]:
                return False
        for term, counts in self._anti_affinity.items():
            if matches(term, task_class.labels):
                domain = labels.get(term.key)
                if domain is not None and counts[domain]:
                    return False
        return True


def matches(term: PodAffinityTerm, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in term.labels)
