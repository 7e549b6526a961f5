"""The placement policy `least-fragments`."""

from __future__ import annotations

from aliquot.labels import NODE_TYPE
from aliquot.planner import Policy
from support.planner import TaskState, cluster, gpus, quota

LEAST = Policy(gpu="least-fragments", cpu="least-fragments", hold_after=None)


def test_fraction_leaves_a_usable_rest() -> None:
    """A fraction takes the device whose rest other tasks can use, not the fullest one that fits."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n1", [0], gpu=0.4).running("y", "n1", [1], gpu=0.5)
    # 0.6 and 0.5 are free. After 0.1 more on the second, as packing would have it, no 0.5 fits there any more.
    world.running("z", "n1", [], gpu=0.5).pending("w", gpu=0.1)
    assert world.started()["w"] == ("n1", [0])


def test_fractions_complete_a_device() -> None:
    """Two halves share a device, and whole GPUs stay whole."""
    world = cluster([gpus(2, "n1"), gpus(2, "n2")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n2", [1], gpu=0.5).pending("y", gpu=0.5).pending("big", gpu=2)
    assert world.started() == {"y": ("n2", [1]), "big": ("n1", [0, 1])}


def test_small_cpu_requests_use_small_nodes() -> None:
    """A task that needs few cores leaves the nodes with many cores to tasks that need them."""
    nodes = [gpus(2, "n1", cpu=64_000), gpus(2, "n2", cpu=8_000)]
    world = cluster(nodes, {"a": quota(8)}, policy=LEAST)
    world.pending("light", gpu=1, cpu=4_000).pending("heavy", gpu=1, cpu=32_000).pending("other", gpu=1, cpu=32_000)
    assert {job: node for job, (node, _) in world.started().items()} == {"light": "n2", "heavy": "n1", "other": "n1"}


def test_scarce_gpu_types_are_left_to_jobs_that_need_them() -> None:
    """A job that may use any GPU leaves the rare type to jobs that may use no other."""
    nodes = [
        gpus(2, "n1", labels={NODE_TYPE: "rare"}),
        *(gpus(2, name, labels={NODE_TYPE: "common"}) for name in "xyz"),
    ]
    world = cluster(nodes, {"a": quota(8)}, policy=LEAST)
    world.pending("any", gpu=1).pending("picky", gpu=2, node_types=("rare",))
    assert world.started()["picky"] == ("n1", [0, 1])


def test_cpu_only_tasks_use_nodes_with_busy_gpus() -> None:
    """A CPU-only task takes cores that no free GPU needs."""
    world = cluster([gpus(1, "n1", cpu=8_000), gpus(1, "n2", cpu=8_000)], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n2", [0]).pending("cores", cpu=6_000).pending("gpu", gpu=1, cpu=6_000)
    assert {job: node for job, (node, _) in world.started().items()} == {"cores": "n2", "gpu": "n1"}


def test_starting_now_is_preferred() -> None:
    """A task starts at once on a worse device rather than later on a better one."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=LEAST)
    world.running("x", "n1", [1], gpu=0.5).running("terminating", "n1", [1], gpu=0.5, state=TaskState.RELEASING)
    world.pending("y", gpu=0.5)
    assert world.started() == {"y": ("n1", [0])}


def test_spread_devices() -> None:
    """The policy for the devices of a node applies beside the one for nodes."""
    policy = Policy(gpu="least-fragments", device="spread", hold_after=None)
    world = cluster([gpus(2, "n1")], {"a": quota(8)}, policy=policy)
    world.running("x", "n1", [0], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])
