"""Node affinity of tasks and volumes, and pod anti-affinity to pods without a project."""

from __future__ import annotations

import pytest

from aliquot.planner import Node, NodeSelectorRequirement, PodAffinityTerm
from aliquot.planner.placement.fit.node_affinity import matches_requirement
from support.planner import cluster, gpus, quota

NODE = Node("n1", labels={"disk": "fast", "cores": "8"})


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("disk", "In", ("fast", "slow"), True),
        ("disk", "In", ("slow",), False),
        ("rack", "In", ("r1",), False),
        ("disk", "NotIn", ("fast",), False),
        ("disk", "NotIn", ("slow",), True),
        ("rack", "NotIn", ("r1",), True),
        ("disk", "Exists", (), True),
        ("rack", "Exists", (), False),
        ("rack", "DoesNotExist", (), True),
        ("disk", "DoesNotExist", (), False),
        ("cores", "Gt", ("7",), True),
        ("cores", "Gt", ("8",), False),
        ("cores", "Lt", ("9",), True),
        ("cores", "Lt", ("8",), False),
        ("disk", "Gt", ("1",), False),
        ("rack", "Lt", ("1",), False),
        ("", "In", ("n1",), True),
        ("", "In", ("n2",), False),
        ("", "NotIn", ("n1",), False),
    ],
)
def test_operators_as_in_kubernetes(key: str, operator: str, values: tuple[str, ...], expected: bool) -> None:
    """Each operator, for a label that exists, a label that does not, and the node's name."""
    assert matches_requirement(NodeSelectorRequirement(key, operator, values), NODE) is expected


def test_one_term_of_each_list_is_enough() -> None:
    """A node must match one term of the task and one term of its volume."""
    nodes = [gpus(1, f"n{index}", labels={"zone": zone, "disk": disk}) for index, (zone, disk) in enumerate(
        [("a", "slow"), ("b", "fast"), ("c", "fast")]
    )]  # fmt: skip
    own = ((NodeSelectorRequirement("zone", "In", ("a",)),), (NodeSelectorRequirement("zone", "In", ("c",)),))
    volume = ((NodeSelectorRequirement("disk", "In", ("fast",)),),)

    world = cluster(nodes, {"a": quota(3)}).pending("j", gpu=1, affinity=(own, volume))

    assert world.started() == {"j": ("n2", [0])}


def test_tasks_that_differ_in_affinity() -> None:
    """Two tasks with the same request and different node affinity each get their node."""
    nodes = [gpus(1, "n1", labels={"zone": "a"}), gpus(1, "n2", labels={"zone": "b"})]
    world = cluster(nodes, {"a": quota(2)})
    for zone in ("b", "a"):
        world = world.pending(zone, gpu=1, affinity=(((NodeSelectorRequirement("zone", "In", (zone,)),),),))

    assert {job: node for job, (node, _) in world.started().items()} == {"a": "n1", "b": "n2"}


def test_anti_affinity_to_pods_without_project() -> None:
    """Anti-affinity also applies to pods that belong to no project."""
    nodes = [gpus(2, "n1", labels={"rack": "r1"}), gpus(2, "n2", labels={"rack": "r2"})]
    world = cluster(nodes, {"a": quota(4)}).running("web", "n1", [0], "", labels={"app": "web"})

    world = world.pending("j", gpu=1, pod_anti_affinity=PodAffinityTerm((("app", "web"),), "rack"))

    assert world.started() == {"j": ("n2", [0])}


def test_job_with_hindrance_waits() -> None:
    """A job that needs what this scheduler cannot give does not start, and its refusal has the reason."""
    world = cluster([gpus(2)], {"a": quota(2)}).pending("j", gpu=1, hindrance="it wants two rules")

    assert world.started() == {}
    assert [reason.text for reason in world.plan().refusals["j"]] == ["it wants two rules"]
