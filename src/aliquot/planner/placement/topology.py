"""Parts of the cluster that are near: nodes with the same values of ordered labels, outer to inner.

A node without all the labels is in no part. Candidates for a job are whole parts, innermost first; among those of one
level the fullest that still holds it all, so that empty parts stay whole for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import mul

from aliquot.planner.model import GPU, Amount, TopologyConstraint
from aliquot.planner.placement.node_state import NodeState

HOSTNAME = "kubernetes.io/hostname"
Part = tuple[str, ...]
# Nodes to choose from, in stages: those of an earlier stage are preferred.
Stages = list[list[NodeState]]


class Topologies:
    def __init__(self, levels: Mapping[str, tuple[str, ...]], nodes: list[NodeState]) -> None:
        self._levels = levels
        self._nodes = nodes
        self._places: dict[str, dict[int, Part]] = {}

    def _places_of(self, name: str) -> dict[int, Part]:
        places = self._places.get(name)
        if places is None:
            places = {}
            for node in self._nodes:
                values = [_value(node, label) for label in self._levels.get(name, ())]
                if values and all(value is not None for value in values):
                    places[node.id] = tuple(value for value in values if value is not None)
            self._places[name] = places
        return places

    def holds(self, topology_constraint: TopologyConstraint, nodes: Iterable[NodeState]) -> bool:
        """Whether these nodes are in one part of the level that is required, where one is."""
        levels, places = (
            self._levels.get(topology_constraint.topology, ()),
            self._places_of(topology_constraint.topology),
        )
        if any(
            label not in levels
            for label in (topology_constraint.preferred, topology_constraint.required)
            if label is not None
        ):
            return False
        if topology_constraint.required is None:
            return True
        depth = levels.index(topology_constraint.required) + 1
        parts = {places.get(node.id, ())[:depth] for node in nodes}
        return len(parts) <= 1 and () not in parts

    def candidates(
        self,
        topology_constraint: TopologyConstraint,
        asked: Amount,
        nodes: Sequence[NodeState],
        held: Iterable[NodeState],
        holding: bool = True,
    ) -> Iterator[Stages]:
        """Sets of nodes to try in turn. `held`: where the job is already. `holding`: only parts with enough free; if
        not, those that would have enough if they were empty."""
        levels = self._levels.get(topology_constraint.topology, ())
        places = self._places_of(topology_constraint.topology)
        wanted = [label for label in (topology_constraint.preferred, topology_constraint.required) if label is not None]
        if any(label not in levels for label in wanted) or not wanted:
            return
        depth = [levels.index(label) + 1 for label in wanted]
        innermost, outermost = (
            max(depth),
            (levels.index(topology_constraint.required) + 1 if topology_constraint.required else 0),
        )
        known = [node for node in nodes if node.id in places]
        if topology_constraint.required:
            there = {places[node.id][:outermost] for node in held if node.id in places}
            if there:
                known = [node for node in known if places[node.id][:outermost] in there] if len(there) == 1 else []
        for level in range(innermost, outermost - 1, -1):
            if level == 0:
                yield self._stages(list(nodes), places, innermost, asked)
                return
            for part in _ranked(known, places, level, asked, holding):
                if not holding and asked[0] > sum(GPU * sum(node.quota_units) for node in part):
                    continue
                if level == innermost or not topology_constraint.preferred:
                    yield [part]
                else:
                    yield self._stages(part, places, innermost, asked)

    def _stages(self, nodes: list[NodeState], places: Mapping[int, Part], level: int, asked: Amount) -> Stages:
        """Where a job must be split over parts, the emptiest first, so that it is split over few."""
        known = [node for node in nodes if node.id in places]
        rest = [node for node in nodes if node.id not in places]
        stages = _ranked(known, places, level, asked, holding=False)
        stages.reverse()
        return [*stages, rest] if rest else stages


def _ranked(
    nodes: list[NodeState], places: Mapping[int, Part], level: int, asked: Amount, holding: bool = True
) -> list[list[NodeState]]:
    """Parts of a level, fullest first; with `holding` only those whose sums could hold it all."""
    parts: dict[Part, list[NodeState]] = {}
    for node in nodes:
        parts.setdefault(places[node.id][:level], []).append(node)
    # Outer parts are compared before the inner ones in them.
    fullness: dict[Part, float] = {}
    for depth in range(1, level + 1):
        outer: dict[Part, list[NodeState]] = {}
        for node in nodes:
            outer.setdefault(places[node.id][:depth], []).append(node)
        fullness |= {name: _fullness(members, asked) for name, members in outer.items()}
    ranked = []
    for name, members in parts.items():
        if not holding or fullness[name] <= 1:
            key = tuple((-fullness[name[:depth]], name[depth - 1]) for depth in range(1, level + 1))
            ranked.append((key, members))
    ranked.sort(key=lambda one: one[0])
    return [members for _, members in ranked]


def _fullness(nodes: Iterable[NodeState], asked: Amount) -> float:
    free = [0, 0, 0]
    for node in nodes:
        after_release = node.after_release
        free[0] += (
            sum(after_release.milli) if node.profiles is None else sum(map(mul, after_release.milli, node.quota_units))
        )
        free[1] += max(after_release.cpu, 0)
        free[2] += max(after_release.memory, 0)
    return (
        max((want / have if have else 2.0) for want, have in zip(asked, free, strict=True) if want)
        if any(asked)
        else 0.0
    )


def _value(node: NodeState, label: str) -> str | None:
    found = node.source.labels.get(label)
    return node.name if found is None and label == HOSTNAME else found
