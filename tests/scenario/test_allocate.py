"""The allocate step: which jobs start, on which nodes and devices."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Policy, Taint, Toleration
from support.planner import TaskState, cluster, gpus, quota


def test_fraction_goes_to_the_fullest_device() -> None:
    """A fraction goes to the device with the least left, so that whole GPUs stay whole."""
    world = cluster([gpus(3, "n1")], {"a": quota(3)})
    world.running("x", "n1", [1], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])


def test_whole_gpus_avoid_shared_devices() -> None:
    """A request for whole GPUs does not get a device that is partly in use."""
    world = cluster([gpus(3, "n1")], {"a": quota(3)})
    world.running("x", "n1", [0], gpu=0.1).pending("y", gpu=2)
    assert world.started()["y"] == ("n1", [1, 2])


def test_node_with_the_least_left() -> None:
    """Binpack prefers the fuller node; ties go to the first name."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2")], {"a": quota(16)})
    world.running("x", "n2", [0, 1], gpu=2).pending("y", gpu=1)
    assert world.started()["y"][0] == "n2"


def test_gpu_memory() -> None:
    """A memory request takes its MiB and the matching milli of the device."""
    world = cluster([gpus(1, "n1", memory_mib=10_000)], {"a": quota(1)})
    world.pending("x", mib=4_000)
    (bind,) = world.plan().binds
    assert [(share.milli, share.memory_mib) for share in bind.shares] == [(400, 4_000)]


def test_memory_on_several_devices() -> None:
    """A memory request on two GPUs takes the same amount of both."""
    world = cluster([gpus(2, "n1", memory_mib=10_000)], {"a": quota(2)})
    world.pending("x", mib=6_000, on=2).pending("y", mib=6_000)
    assert world.started() == {"x": ("n1", [0, 1])}


def test_small_job_starts_while_a_large_one_waits() -> None:
    """A job that does not fit does not block one that does."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)})
    world.running("x", "n1", [0]).pending("large", gpu=2).pending("small", gpu=1)
    assert list(world.started()) == ["small"]


def test_nomination_for_releasing_devices() -> None:
    """A terminating task still holds its GPUs, so the next task is nominated for them."""
    world = cluster([gpus(1, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING).pending("new", gpu=1)
    assert world.started() == {}
    assert [nomination.job for nomination in world.plan().nominations] == ["new"]


def test_releasing_no_longer_counts_against_quota() -> None:
    """A terminating task no longer counts as usage of its queue."""
    world = cluster([gpus(2, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING, preemptible=False)
    world.pending("new", gpu=1, preemptible=False)
    assert "new" in world.started()


def test_unhealthy_device() -> None:
    """An unhealthy GPU is not allocated."""
    node = gpus(2, "n1")
    node = replace(node, devices=(replace(node.devices[0], healthy=False), node.devices[1]))
    world = cluster([node], {"a": quota(2)}).pending("x", gpu=1).pending("y", gpu=1)
    assert world.started() == {"x": ("n1", [1])}


def test_node_type() -> None:
    """Node types and selectors restrict the nodes of a job (G1)."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2", labels={"run.ai/type": "dgx-2"})], {"a": quota(8)})
    world.pending("x", gpu=1, node_types=("dgx-2",)).pending("y", gpu=1, selector={"run.ai/type": "dgx-2"})
    assert {node for node, _ in world.started().values()} == {"n2"}


def test_taint() -> None:
    """Only a job that tolerates the taint uses a tainted node."""
    world = cluster([gpus(8, "n1", taints=(Taint("runai", "drain"),))], {"a": quota(8)})
    world.pending("x", gpu=1).pending("y", gpu=1, tolerations=(Toleration("runai"),))
    assert list(world.started()) == ["y"]


def test_cpu_only_avoids_gpu_nodes() -> None:
    """A job without GPUs prefers a node without GPUs."""
    world = cluster([gpus(8, "n1"), gpus(0, "n2")], {"a": quota(8)}).pending("x")
    assert world.started()["x"] == ("n2", [])


def test_spread_over_nodes() -> None:
    """Spreading takes the emptiest node."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2")], {"a": quota(16)}, policy=Policy(gpu="spread"))
    world.running("x", "n1", [0]).pending("y", gpu=1)
    assert world.started()["y"][0] == "n2"


def test_spread_over_devices() -> None:
    """With spread devices a fraction takes the emptiest GPU of the node."""
    world = cluster([gpus(2, "n1")], {"a": quota(2)}, policy=Policy(device="spread"))
    world.running("x", "n1", [0], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])


def test_nominated_task_starts_first() -> None:
    """A nominated task starts on its devices when they are free, before an older pending job."""
    world = cluster([gpus(1, "n1")], {"a": quota(2)}).pending("old", gpu=1, created=-9.0)
    world.running("nominated", "n1", [0], state=TaskState.NOMINATED)
    assert world.started() == {"nominated": ("n1", [0])}


def test_gang_whole_or_not_at_all() -> None:
    """A gang that does not fit starts no task, and other jobs use the GPUs."""
    world = cluster([gpus(3)], {"a": quota(8)}).pending("gang", gpu=1, count=4).pending("single", gpu=1)
    assert list(world.started()) == ["single"]


def test_elastic_job_starts_what_fits() -> None:
    """Above its minimum a job starts as many tasks as fit."""
    world = cluster([gpus(3)], {"a": quota(8)}).pending("elastic", gpu=1, count=5, min_available=2)
    assert len(world.plan().binds) == 3
