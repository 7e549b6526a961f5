"""What starts, where, and on which devices, while nobody is disturbed."""

from __future__ import annotations

from dataclasses import replace

from aliquot.planner import Policy, Taint, Toleration
from support.planner import TaskState, cluster, gpus, quota


def test_fraction_goes_to_the_fullest_device() -> None:
    """A part of a GPU goes where the least is left, so that whole GPUs stay whole."""
    world = cluster([gpus(3, "n1")], {"a": quota(3)})
    world.running("x", "n1", [1], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])


def test_whole_gpus_keep_off_shared_devices() -> None:
    """A whole GPU is a whole GPU."""
    world = cluster([gpus(3, "n1")], {"a": quota(3)})
    world.running("x", "n1", [0], gpu=0.1).pending("y", gpu=2)
    assert world.started()["y"] == ("n1", [1, 2])


def test_node_with_the_least_left() -> None:
    """Work is packed: the fuller node first, ties by name."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2")], {"a": quota(16)})
    world.running("x", "n2", [0, 1], gpu=2).pending("y", gpu=1)
    assert world.started()["y"][0] == "n2"


def test_memory_slice() -> None:
    """An amount of memory takes its MiB and the matching part of the device."""
    world = cluster([gpus(1, "n1", memory_mib=10_000)], {"a": quota(1)})
    world.pending("x", mib=4_000)
    (bind,) = world.plan().binds
    assert [(share.milli, share.memory_mib) for share in bind.shares] == [(400, 4_000)]


def test_memory_on_several_devices() -> None:
    """The same amount on two GPUs of one node."""
    world = cluster([gpus(2, "n1", memory_mib=10_000)], {"a": quota(2)})
    world.pending("x", mib=6_000, on=2).pending("y", mib=6_000)
    assert world.started() == {"x": ("n1", [0, 1])}


def test_small_job_passes_a_large_one_that_waits() -> None:
    """A job that does not fit does not hold up one that does."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)})
    world.running("x", "n1", [0]).pending("large", gpu=2).pending("small", gpu=1)
    assert list(world.started()) == ["small"]


def test_releasing_devices_are_promised() -> None:
    """What still stops still holds its GPUs: who gets them is promised a place."""
    world = cluster([gpus(1, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING).pending("new", gpu=1)
    assert world.started() == {}
    assert [one.job for one in world.plan().nominations] == ["new"]


def test_releasing_no_longer_counts_against_quota() -> None:
    """What stops has left its queue."""
    world = cluster([gpus(2, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING, preemptible=False)
    world.pending("new", gpu=1, preemptible=False)
    assert "new" in world.started()


def test_unhealthy_device() -> None:
    """A broken GPU is not given out."""
    node = gpus(2, "n1")
    node = replace(node, devices=(replace(node.devices[0], healthy=False), node.devices[1]))
    world = cluster([node], {"a": quota(2)}).pending("x", gpu=1).pending("y", gpu=1)
    assert world.started() == {"x": ("n1", [1])}


def test_node_type() -> None:
    """Labels decide where a job may go (G1)."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2", labels={"run.ai/type": "dgx-2"})], {"a": quota(8)})
    world.pending("x", gpu=1, node_types=("dgx-2",)).pending("y", gpu=1, selector={"run.ai/type": "dgx-2"})
    assert {node for node, _ in world.started().values()} == {"n2"}


def test_taint() -> None:
    """A tainted node is for those who bear it."""
    world = cluster([gpus(8, "n1", taints=(Taint("runai", "drain"),))], {"a": quota(8)})
    world.pending("x", gpu=1).pending("y", gpu=1, tolerations=(Toleration("runai"),))
    assert list(world.started()) == ["y"]


def test_cpu_only_keeps_off_gpus() -> None:
    """A job without GPUs goes to a node without GPUs when there is one."""
    world = cluster([gpus(8, "n1"), gpus(0, "n2")], {"a": quota(8)}).pending("x")
    assert world.started()["x"] == ("n2", [])


def test_spread_over_nodes() -> None:
    """Spreading takes the emptiest node."""
    world = cluster([gpus(8, "n1"), gpus(8, "n2")], {"a": quota(16)}, policy=Policy(gpu="spread"))
    world.running("x", "n1", [0]).pending("y", gpu=1)
    assert world.started()["y"][0] == "n2"


def test_spread_over_devices() -> None:
    """Parts spread over the GPUs of a node take the emptiest one."""
    world = cluster([gpus(2, "n1")], {"a": quota(2)}, policy=Policy(device="spread"))
    world.running("x", "n1", [0], gpu=0.5).pending("y", gpu=0.5)
    assert world.started()["y"] == ("n1", [1])


def test_promise_is_kept() -> None:
    """Who was promised a place that is free now starts there, before an older job that came later to it."""
    world = cluster([gpus(1, "n1")], {"a": quota(2)}).pending("old", gpu=1, created=-9.0)
    world.running("promised", "n1", [0], state=TaskState.NOMINATED)
    assert world.started() == {"promised": ("n1", [0])}


def test_gang_whole_or_not_at_all() -> None:
    """A gang that does not fit starts nothing, and leaves the room to others."""
    world = cluster([gpus(3)], {"a": quota(8)}).pending("gang", gpu=1, count=4).pending("single", gpu=1)
    assert list(world.started()) == ["single"]


def test_elastic_takes_what_there_is() -> None:
    """Above its minimum a job starts as many tasks as fit."""
    world = cluster([gpus(3)], {"a": quota(8)}).pending("elastic", gpu=1, count=5, min_available=2)
    assert len(world.plan().binds) == 3
