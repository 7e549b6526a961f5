"""The sets of nodes that a topology constraint allows, in the order in which they are tried."""

from __future__ import annotations

import pytest

from aliquot.planner import TopologyConstraint
from aliquot.planner.placement.node_state import NodeState
from aliquot.planner.placement.topology import Topologies
from support.planner import gpus

LEVELS = {"default": ("zone", "rack")}
# Free GPUs by node; the first letter is the zone, the first two are the rack.
FREE = {"a1x": 2, "a1y": 2, "a2x": 1, "b1x": 4, "b2x": 3, "b2y": 2}


def nodes(free: dict[str, int] = FREE) -> list[NodeState]:
    states = []
    for number, (name, count) in enumerate(free.items()):
        labels = {"zone": name[0], "rack": name[1]} if name != "nowhere" else {}
        states.append(NodeState(gpus(count, name, labels=labels), number))
    return states


def candidates(
    required: str | None = None, preferred: str | None = None, gpu: int = 1, used: tuple[str, ...] = ()
) -> list[str]:
    """The names of the nodes of each candidate, with a bar between stages."""
    there = nodes()
    topologies = Topologies(LEVELS, there)
    at = [node for node in there if node.name in used]
    topology_constraint = TopologyConstraint("default", required, preferred)
    candidates = topologies.candidates(topology_constraint, (gpu * 1000, 0, 0), there, at)
    return [" | ".join(" ".join(node.name for node in stage) for stage in stages) for stages in candidates]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        pytest.param(1, ["a2x", "a1x a1y", "b1x", "b2x b2y"], id="the fullest first, zone by zone"),
        pytest.param(4, ["a1x a1y", "b1x", "b2x b2y"], id="only racks where it fits"),
        pytest.param(5, ["b2x b2y"], id="only one"),
        pytest.param(6, [], id="none"),
    ],
)
def test_required_rack(gpu: int, expected: list[str]) -> None:
    """Racks with enough free GPUs, the fullest first, so that empty racks stay whole."""
    assert candidates(required="rack", gpu=gpu) == expected


def test_required_zone() -> None:
    """Domains of an outer level contain several racks."""
    assert candidates(required="zone", gpu=5) == ["a1x a1y a2x", "b1x b2x b2y"]


def test_preferred_rack() -> None:
    """A rack where it fits, then a zone with its emptiest rack first, then all nodes."""
    assert candidates(preferred="rack", gpu=5) == [
        "b2x b2y",
        "a1x a1y | a2x",
        "b2x b2y | b1x",
        "b2x b2y | b1x | a1x a1y | a2x",
    ]


def test_required_zone_preferred_rack() -> None:
    """No domain is larger than the required level."""
    assert candidates(required="zone", preferred="rack", gpu=5) == ["b2x b2y", "a1x a1y | a2x", "b2x b2y | b1x"]


def test_job_grows_in_its_domain() -> None:
    """A job that has tasks in a domain gets more nodes of that domain only."""
    assert candidates(required="rack", used=("b1x",)) == ["b1x"]
    assert candidates(required="zone", used=("a2x",)) == ["a1x a1y a2x"]


def test_job_in_two_domains() -> None:
    """A job that already violates its constraint has no candidates."""
    assert candidates(required="rack", used=("a1x", "b1x")) == []


def test_full_domains_when_evictions_are_allowed() -> None:
    """With evictions, domains are candidates however full they are, if they are large enough."""
    there = nodes({"a1x": 2, "a2x": 2, "a3x": 1})
    for node in there:
        node.allocate(node.after_release, 0, 0, [(0, 1000, node.sizes[0])])

    def candidate_names(free_only: bool) -> list[str]:
        topology_constraint = TopologyConstraint("default", "rack")
        sets = Topologies(LEVELS, there).candidates(topology_constraint, (2000, 0, 0), there, [], free_only)
        return [node.name for stages in sets for node in stages[0]]

    assert candidate_names(free_only=True) == []
    assert candidate_names(free_only=False) == ["a1x", "a2x"]


@pytest.mark.parametrize(
    "topology_constraint",
    [TopologyConstraint("default", "row"), TopologyConstraint("other", "rack"), TopologyConstraint()],
)
def test_no_such_level(topology_constraint: TopologyConstraint) -> None:
    """A level or a topology that does not exist has no domains."""
    there = nodes()
    assert list(Topologies(LEVELS, there).candidates(topology_constraint, (1000, 0, 0), there, [])) == []


def test_nodes_without_labels() -> None:
    """A node without the labels is in no domain. It comes last where the constraint is only preferred."""
    there = nodes({"a1x": 2, "nowhere": 2})
    topologies = Topologies(LEVELS, there)

    def names(topology_constraint: TopologyConstraint) -> list[list[list[str]]]:
        candidates = topologies.candidates(topology_constraint, (1000, 0, 0), there, [])
        return [[[node.name for node in stage] for stage in stages] for stages in candidates]

    assert names(TopologyConstraint("default", "rack")) == [[["a1x"]]]
    assert names(TopologyConstraint("default", None, "rack"))[-1] == [["a1x"], ["nowhere"]]


def test_hostname_defaults_to_node_name() -> None:
    """A node without the hostname label is a domain of its own."""
    there = [NodeState(gpus(1, name), number) for number, name in enumerate("pq")]
    topologies = Topologies({"default": ("kubernetes.io/hostname",)}, there)
    candidates = topologies.candidates(TopologyConstraint("default", "kubernetes.io/hostname"), (1000, 0, 0), there, [])
    assert [[node.name for node in stages[0]] for stages in candidates] == [["p"], ["q"]]
