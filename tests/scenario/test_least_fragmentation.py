"""Placement that leaves the least room that nobody can use."""

from __future__ import annotations

from aliquot.labels import NODE_TYPE
from aliquot.planner import Policy
from support.planner import TaskState, cluster, gpus, quota

LEAST = Policy(gpu="least-fragments", cpu="least-fragments", hold_after=None)


def test_part_goes_where_the_rest_is_of_use() -> None:
    """A part takes the device whose rest somebody else can use, not the fullest one that fits."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n1", [0], gpu=0.4).running("y", "n1", [1], gpu=0.5)
    # 0.6 and 0.5 are free. After 0.1 more on the second, as packing would have it, no 0.5 fits there any more.
    world.running("z", "n1", [], gpu=0.5).pending("w", gpu=0.1)
    assert world.started()["w"] == ("n1", [0])


def test_parts_complete_a_device() -> None:
    """Halves go together, and whole GPUs stay whole."""
    world = cluster([gpus(2, "n1"), gpus(2, "n2")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n2", [1], gpu=0.5).pending("y", gpu=0.5).pending("big", gpu=2)
    assert world.started() == {"y": ("n2", [1]), "big": ("n1", [0, 1])}


def test_few_cores_go_where_cores_are_few() -> None:
    """Work that needs few cores leaves nodes with many cores to work that needs them."""
    nodes = [gpus(2, "n1", cpu=64_000), gpus(2, "n2", cpu=8_000)]
    world = cluster(nodes, {"a": quota(8)}, policy=LEAST)
    world.pending("light", gpu=1, cpu=4_000).pending("heavy", gpu=1, cpu=32_000).pending("other", gpu=1, cpu=32_000)
    assert {job: node for job, (node, _) in world.started().items()} == {"light": "n2", "heavy": "n1", "other": "n1"}


def test_scarce_models_are_kept_for_those_who_name_them() -> None:
    """Who may use any GPU leaves the rare ones to those who may use no other."""
    nodes = [
        gpus(2, "n1", labels={NODE_TYPE: "rare"}),
        *(gpus(2, name, labels={NODE_TYPE: "common"}) for name in "xyz"),
    ]
    world = cluster(nodes, {"a": quota(8)}, policy=LEAST)
    world.pending("any", gpu=1).pending("picky", gpu=2, node_types=("rare",))
    assert world.started()["picky"] == ("n1", [0, 1])


def test_work_without_gpus_goes_where_gpus_are_in_use() -> None:
    """Cores are taken where no free GPU needs them."""
    world = cluster([gpus(1, "n1", cpu=8_000), gpus(1, "n2", cpu=8_000)], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n2", [0]).pending("cores", cpu=6_000).pending("gpu", gpu=1, cpu=6_000)
    assert {job: node for job, (node, _) in world.started().items()} == {"cores": "n2", "gpu": "n1"}


def test_starting_now_is_better_than_a_better_place_later() -> None:
    """Who can start at once does, even if somebody is leaving the better device."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n1", [1], gpu=0.5).running("leaves", "n1", [1], gpu=0.5, state=TaskState.RELEASING)
    world.pending("y", gpu=0.5)
    assert world.started() == {"y": ("n1", [0])}


def test_parts_spread_over_devices_when_asked_to() -> None:
    """The rule for devices of a node holds beside the one for nodes."""
    policy = Policy(gpu="least-fragments", device="spread", hold_after=None)
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=policy)
    world.running("x", "n1", [0], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])
