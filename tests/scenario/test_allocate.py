"""What starts, where, on which devices, and why the rest waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.core import Snapshot, Verdict, plan
from aliquot.core.model import Taint, Toleration
from worlds import TaskState, World, cluster, gpus, quota


def two_dgx() -> World:
    teams = {"team-a": quota(4), "team-b": quota(2), "team-c": quota(2), "team-d": quota(8)}
    return cluster([gpus(8, "dgx1-1"), gpus(8, "dgx1-2")], teams)


def test_section_4_8() -> None:
    """Thirteen jobs of four teams fill sixteen GPUs; fractions share devices; each node is full."""
    world = two_dgx()
    for name, queue, gpu, fixed in (
        ("a-1-1-jupyter", "team-a", 1, True), ("a-1-g", "team-a", 1, False), ("a-2-gg", "team-a", 2, False),
        ("b-1-g06", "team-b", 0.6, True), ("b-2-g04", "team-b", 0.4, True), ("b-3-g", "team-b", 1, False),
        ("b-4-gg", "team-b", 2, False), ("c-1-g05", "team-c", 0.5, True), ("c-2-g03", "team-c", 0.3, True),
        ("c-3-g02", "team-c", 0.2, True), ("c-4-gg", "team-c", 2, False), ("c-5-g", "team-c", 1, False),
        ("d-1-gggg", "team-d", 4, False),
    ):  # fmt: skip
        world.pending(name, queue, gpu=gpu, preemptible=not fixed)
    started = world.started()
    assert len(started) == 13
    assert started["b-1-g06"] == started["b-2-g04"]
    assert started["c-1-g05"] == started["c-2-g03"] == started["c-3-g02"]
    held = {"dgx1-1": 0, "dgx1-2": 0}
    for bind in world.plan().binds:
        held[bind.node] += sum(share.milli for share in bind.shares)
    assert held == {"dgx1-1": 8000, "dgx1-2": 8000}


def test_fractions_fill_a_device_exactly() -> None:
    """0.5, 0.3 and 0.2 are one GPU, without a rounding error."""
    world = cluster([gpus(1)], {"a": quota(1)})
    for name, part in (("x", 0.5), ("y", 0.3), ("z", 0.2), ("over", 0.1)):
        world.pending(name, gpu=part)
    assert sorted(world.started()) == ["x", "y", "z"]
    assert world.plan().refusals["over"][0].code == "enough-gpu"


def test_eight_eighths() -> None:
    """Eight jobs of an eighth share one GPU."""
    world = cluster([gpus(2)], {"a": quota(2)})
    for index in range(8):
        world.pending(f"j{index}", gpu=0.125)
    assert {tuple(devices) for _, devices in world.started().values()} == {(0,)}


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


def test_memory_larger_than_any_device() -> None:
    """More memory than a GPU has is told so, for good."""
    world = cluster([gpus(1)], {"a": quota(1)})
    world.pending("x", mib=40_000)
    (reason,) = world.plan().refusals["x"]
    assert (reason.code, reason.verdict) == ("too-large", Verdict.NEVER)


def test_more_gpus_than_any_node_has() -> None:
    """A job that fits nowhere is told so, for good, with what it asked."""
    world = cluster([gpus(8), gpus(8)], {"a": quota(32)})
    world.pending("x", gpu=16)
    (reason,) = world.plan().refusals["x"]
    assert reason.verdict is Verdict.NEVER
    assert reason.text == "16 GPUs fit on no node of this cluster (2 nodes with 8 GPUs)"


def test_interactive_stays_within_quota() -> None:
    """What cannot be stopped waits at the quota, although GPUs are idle (E1)."""
    world = cluster([gpus(8)], {"a": quota(2)})
    for index in range(3):
        world.pending(f"j{index}", gpu=1, preemptible=False)
    assert sorted(world.started()) == ["j0", "j1"]
    (reason,) = world.plan().refusals["j2"]
    assert reason.code == "over-quota"
    assert "holds 2 and asks for 1 more" in reason.text


def test_training_goes_over_quota() -> None:
    """What can be stopped may borrow."""
    world = cluster([gpus(8)], {"a": quota(2)})
    for index in range(3):
        world.pending(f"j{index}", gpu=1)
    assert len(world.started()) == 3


def test_no_over_quota() -> None:
    """A project that may not borrow stays within its quota (D5)."""
    world = cluster([gpus(8)], {"a": quota(2, over_quota=False)})
    for index in range(3):
        world.pending(f"j{index}", gpu=1)
    assert len(world.started()) == 2


def test_limit() -> None:
    """Nobody goes beyond the limit."""
    world = cluster([gpus(8)], {"a": quota(1, gpu_limit=2000)})
    for index in range(4):
        world.pending(f"j{index}", gpu=1)
    assert len(world.started()) == 2
    assert world.plan().refusals["j2"][0].code == "over-limit"


def test_borrowed_gpus_do_not_count_against_interactive() -> None:
    """Training over quota does not keep the project's own interactive job out of its quota."""
    world = cluster([gpus(8, "n1")], {"a": quota(2)})
    world.running("t", "n1", [0, 1, 2], gpu=3).pending("i", gpu=1, preemptible=False)
    assert "i" in world.started()


def test_oldest_first() -> None:
    """Who came first is served first."""
    world = cluster([gpus(1)], {"a": quota(1)})
    world.pending("late", gpu=1, created=2.0).pending("early", gpu=1, created=1.0)
    assert list(world.started()) == ["early"]


def test_small_job_passes_a_large_one_that_waits() -> None:
    """A job that does not fit does not hold up one that does."""
    world = cluster([gpus(2, "n1")], {"a": quota(8)})
    world.running("x", "n1", [0]).pending("large", gpu=2).pending("small", gpu=1)
    assert list(world.started()) == ["small"]


def test_releasing_devices_are_not_free() -> None:
    """What still stops still holds its GPUs."""
    world = cluster([gpus(1, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING).pending("new", gpu=1)
    assert world.started() == {}


def test_releasing_no_longer_counts_against_quota() -> None:
    """What stops has left its queue."""
    world = cluster([gpus(2, "n1")], {"a": quota(1)})
    world.running("old", "n1", [0], state=TaskState.RELEASING, preemptible=False)
    world.pending("new", gpu=1, preemptible=False)
    assert "new" in world.started()


def test_node_that_is_not_ready() -> None:
    """Nothing goes to a node that is not ready."""
    world = cluster([gpus(8, ready=False)], {"a": quota(8)}).pending("x", gpu=1)
    assert world.plan().refusals["x"][0].text == "1 GPU fits on no node now (1 node not ready)"


def test_unhealthy_device() -> None:
    """A broken GPU is not given out."""
    from dataclasses import replace

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


def test_unknown_project() -> None:
    """A job of no project gets nothing."""
    world = cluster([gpus(8)], {"a": quota(8)}).pending("x", "nobody", gpu=1)
    assert world.plan().refusals["x"][0].code == "no-project"


def test_empty_cluster() -> None:
    """Without nodes everything waits, and says so."""
    world = cluster([], {"a": quota(8)}).pending("x", gpu=1)
    assert world.plan().refusals["x"][0].code == "no-nodes"


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 1, 2, 4, 9]), st.booleans(), st.sampled_from("ab")),
        max_size=25,
    ),
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_properties(jobs: list[tuple[float, bool, str]], nodes: list[int], chance: object) -> None:
    """Never more than there is; every job started or told why; the same plan whatever the order of the parts."""
    world = cluster([gpus(count) for count in nodes], {"a": quota(3), "b": quota(1)})
    for index, (gpu, fixed, queue) in enumerate(jobs):
        world.pending(f"j{index:02}", queue, gpu=gpu, preemptible=not fixed)
    decided = world.plan()
    held: dict[tuple[str, int], int] = {}
    for bind in decided.binds:
        for share in bind.shares:
            held[bind.node, share.index] = held.get((bind.node, share.index), 0) + share.milli
    assert all(milli <= 1000 for milli in held.values())
    started = {bind.job for bind in decided.binds}
    assert started.isdisjoint(decided.refusals)
    assert len(started) + len(decided.refusals) == len(jobs)
    fixed_use = {"a": 0.0, "b": 0.0}
    for index, (gpu, fixed, queue) in enumerate(jobs):
        if fixed and f"j{index:02}" in started:
            fixed_use[queue] += gpu
    assert fixed_use["a"] <= 3.0001
    assert fixed_use["b"] <= 1.0001
    parts = [list(world.nodes), list(world.queues), list(world.jobs)]
    for part in parts:
        chance.shuffle(part)  # type: ignore[attr-defined]
    assert plan(Snapshot(*(tuple(part) for part in parts))) == decided  # type: ignore[arg-type]
