"""Topology domains: nodes with the same values of ordered node labels, from outer to inner levels.

A node without all of the labels is in no domain. The candidates for a job are whole domains, innermost first. Among the
domains of one level the fullest that still holds the whole job comes first, so that empty domains stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import mul

from aliquot.planner.model import GPU, Amount, TopologyConstraint
from aliquot.planner.placement.node_state import NodeState

HOSTNAME = "kubernetes.io/hostname"
# The values of the labels of a topology, outermost first. The first n of them name the domain of level n.
Domain = tuple[str, ...]
# Nodes to choose from, in stages: the nodes of an earlier stage are preferred.
Stages = list[list[NodeState]]


class Topologies:
    def __init__(self, levels: Mapping[str, tuple[str, ...]], nodes: list[NodeState]) -> None:
        self._levels = levels
        self._nodes = nodes
        self._domains: dict[str, dict[int, Domain]] = {}

    def _domains_of(self, topology: str) -> dict[int, Domain]:
        """The innermost domain of each node, by node id."""
        domains = self._domains.get(topology)
        if domains is None:
            domains = {}
            for node in self._nodes:
                values = [_label(node, label) for label in self._levels.get(topology, ())]
                if values and all(value is not None for value in values):
                    domains[node.id] = tuple(value for value in values if value is not None)
            self._domains[topology] = domains
        return domains

    def satisfied(self, constraint: TopologyConstraint, nodes: Iterable[NodeState]) -> bool:
        """Whether these nodes are in one domain of the required level, where a level is required."""
        levels, domains = self._levels.get(constraint.topology, ()), self._domains_of(constraint.topology)
        if any(label not in levels for label in (constraint.preferred, constraint.required) if label is not None):
            return False
        if constraint.required is None:
            return True
        depth = levels.index(constraint.required) + 1
        used = {domains.get(node.id, ())[:depth] for node in nodes}
        return len(used) <= 1 and () not in used

    def candidates(
        self,
        constraint: TopologyConstraint,
        requested: Amount,
        nodes: Sequence[NodeState],
        used: Iterable[NodeState],
        free_only: bool = True,
    ) -> Iterator[Stages]:
        """The sets of nodes to try in turn. `used`: the nodes on which the job has tasks. `free_only`: only domains
        with enough free resources; if not, also domains that would have enough if they were empty."""
        levels = self._levels.get(constraint.topology, ())
        domains = self._domains_of(constraint.topology)
        labels = [label for label in (constraint.preferred, constraint.required) if label is not None]
        if any(label not in levels for label in labels) or not labels:
            return
        depths = [levels.index(label) + 1 for label in labels]
        innermost, outermost = max(depths), (levels.index(constraint.required) + 1 if constraint.required else 0)
        labelled = [node for node in nodes if node.id in domains]
        if constraint.required:
            required = {domains[node.id][:outermost] for node in used if node.id in domains}
            if len(required) > 1:
                labelled = []
            elif required:
                labelled = [node for node in labelled if domains[node.id][:outermost] in required]
        for level in range(innermost, outermost - 1, -1):
            if level == 0:
                yield self._stages(list(nodes), domains, innermost, requested)
                return
            for members in _ranked(labelled, domains, level, requested, free_only):
                if not free_only and requested[0] > sum(GPU * sum(node.quota_units) for node in members):
                    continue
                if level == innermost or not constraint.preferred:
                    yield [members]
                else:
                    yield self._stages(members, domains, innermost, requested)

    def _stages(self, nodes: list[NodeState], domains: Mapping[int, Domain], level: int, requested: Amount) -> Stages:
        """Where a job must be split over domains, the emptiest comes first, so that it is split over few."""
        labelled = [node for node in nodes if node.id in domains]
        rest = [node for node in nodes if node.id not in domains]
        stages = _ranked(labelled, domains, level, requested, free_only=False)
        stages.reverse()
        return [*stages, rest] if rest else stages


def _ranked(
    nodes: list[NodeState], domains: Mapping[int, Domain], level: int, requested: Amount, free_only: bool = True
) -> list[list[NodeState]]:
    """The nodes by domain of a level, fullest domain first; with `free_only` only domains with enough free."""
    by_domain: dict[Domain, list[NodeState]] = {}
    for node in nodes:
        by_domain.setdefault(domains[node.id][:level], []).append(node)
    # Outer domains are compared before the inner ones in them.
    fullness: dict[Domain, float] = {}
    for depth in range(1, level + 1):
        outer: dict[Domain, list[NodeState]] = {}
        for node in nodes:
            outer.setdefault(domains[node.id][:depth], []).append(node)
        fullness |= {domain: _fullness(members, requested) for domain, members in outer.items()}
    ranked = []
    for domain, members in by_domain.items():
        if not free_only or fullness[domain] <= 1:
            key = tuple((-fullness[domain[:depth]], domain[depth - 1]) for depth in range(1, level + 1))
            ranked.append((key, members))
    ranked.sort(key=lambda entry: entry[0])
    return [members for _, members in ranked]


def _fullness(nodes: Iterable[NodeState], requested: Amount) -> float:
    """The request as a part of what is free on these nodes, by the scarcest resource; above 1 it does not fit."""
    free = [0, 0, 0]
    for node in nodes:
        view = node.after_release
        free[0] += sum(view.milli) if node.profiles is None else sum(map(mul, view.milli, node.quota_units))
        free[1] += max(view.cpu, 0)
        free[2] += max(view.memory, 0)
    if not any(requested):
        return 0.0
    return max((want / have if have else 2.0) for want, have in zip(requested, free, strict=True) if want)


def _label(node: NodeState, label: str) -> str | None:
    value = node.source.labels.get(label)
    return node.name if value is None and label == HOSTNAME else value
