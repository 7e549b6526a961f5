"""How a scenario becomes the planner's model: defaults, units, times, and the devices of running tasks."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aliquot.errors import Invalid
from aliquot.planner.model import DeviceShare, Job, Node, PoolQuota, Request, TaskState
from aliquot.sim import SimulatedCluster, load_clusters


def loaded_cluster(**fields: Any) -> SimulatedCluster:
    base = {"nodes": [{"name": "n1", "gpus": 2, "gpuMemoryMiB": 1000}], "projects": [{"name": "a"}]}
    (cluster,) = load_clusters({**base, **fields})
    return cluster


def loaded_job(**fields: Any) -> Job:
    return loaded_cluster(workloads=[{"name": "w", "project": "a", **fields}]).jobs["w"]


def loaded_node(**fields: Any) -> Node:
    return loaded_cluster(nodes=[{"name": "n1", **fields}]).nodes["n1"]


def loaded_quota(**fields: Any) -> PoolQuota:
    return loaded_cluster(projects=[{"name": "a", **fields}]).queues["a"].pool_quota("default")


def devices_of(*tasks: dict[str, Any], **fields: Any) -> dict[str, list[int]]:
    """Devices by task, for running tasks of one workload."""
    running = [{"state": "running", "node": "n1", **task} for task in tasks]
    loaded = loaded_cluster(workloads=[{"name": "w", "project": "a", "tasks": running}], **fields)
    return {task.name: [share.index for share in task.shares] for task in loaded.jobs["w"].tasks}


@pytest.mark.parametrize(
    "kind, priority, preemptible", [("training", 50, True), ("interactive", 100, False), ("inference", 125, False)]
)
def test_type_sets_priority(kind: str, priority: int, preemptible: bool) -> None:
    """The type sets priority and preemptibility."""
    loaded = loaded_job(type=kind)
    assert (loaded.priority, loaded.preemptible) == (priority, preemptible)


def test_given_wins_over_type() -> None:
    """Given priority and preemptibility override those of the type."""
    loaded = loaded_job(type="interactive", priority=75, preemptible=True)
    assert (loaded.priority, loaded.preemptible) == (75, True)


@pytest.mark.parametrize("priority, preemptible", [(99, True), (100, False)])
def test_priority_without_a_type(priority: int, preemptible: bool) -> None:
    """Without a type, a workload is nonpreemptible from priority 100."""
    assert loaded_job(priority=priority).preemptible is preemptible


def test_replicas() -> None:
    """`replicas` gives pending tasks with the names of the platform's pods."""
    loaded = loaded_job(replicas=2, request={"gpu": 1})
    assert [task.name for task in loaded.tasks] == ["w-0-0", "w-1-0"]
    assert {task.state for task in loaded.tasks} == {TaskState.PENDING}
    assert loaded.min_available is None


@pytest.mark.parametrize(
    "request_, wanted",
    [
        ({}, Request()),
        ({"gpu": 2, "cpu": 0.5, "memory": "1Gi"}, Request(2, 1000, cpu=500, memory=1 << 30)),
        ({"gpuFraction": 0.125}, Request(1, 125)),
        ({"gpuFraction": 0.5, "devices": 2}, Request(2, 500)),
        ({"gpuMemoryMiB": 4000, "devices": 2}, Request(2, memory_mib=4000)),
        ({"mig": {"2g.10gb": 1, "1g.5gb": 2}}, Request(3, 1000, mig=(("1g.5gb", 2), ("2g.10gb", 1)))),
        ({"memory": "1G"}, Request(memory=10**9)),
        ({"memory": 512}, Request(memory=512)),
    ],
)
def test_request(request_: dict[str, Any], wanted: Request) -> None:
    """Amounts are converted exactly to base units."""
    assert loaded_job(request=request_).tasks[0].request == wanted


def test_task_request_replaces() -> None:
    """A task's request replaces the workload's as a whole."""
    loaded = loaded_job(request={"gpu": 1, "cpu": 4}, tasks=[{}, {"request": {"gpu": 2}}])
    assert [task.request for task in loaded.tasks] == [Request(1, 1000, cpu=4000), Request(2, 1000)]


def test_task_selector_adds() -> None:
    """A task's selector extends the workload's."""
    loaded = loaded_job(nodeSelector={"a": "1", "b": "1"}, tasks=[{"nodeSelector": {"b": "2"}}])
    assert loaded.tasks[0].selector == {"a": "1", "b": "2"}


def test_file_order_is_age() -> None:
    """Workloads without a creation time are created in the order of the file."""
    loaded = loaded_cluster(workloads=[{"name": name, "project": "a"} for name in ("z", "y", "x")])
    ages = [loaded.jobs[name].created for name in ("z", "y", "x")]
    assert ages == sorted(ages)
    assert len(set(ages)) == 3
    assert max(ages) <= 0


def test_times() -> None:
    """Times become seconds relative to now, from relative and absolute values."""
    fields = {"name": "w", "project": "a", "created": "2026-01-01T00:00:30Z", "started": -10}
    loaded = loaded_cluster(now="2026-01-01T00:01:00Z", workloads=[fields]).jobs["w"]
    assert (loaded.created, loaded.started) == (-30, -10)


def test_quota() -> None:
    """A missing quota is no GPU and unlimited CPU and memory; null is unlimited."""
    assert loaded_quota() == PoolQuota(quota=(0, None, None))
    assert loaded_quota(quota={"gpu": 0.5, "cpu": 2, "memory": "1Ki"}).quota == (500, 2000, 1024)
    assert loaded_quota(quota={"gpu": None}).quota == (None, None, None)
    assert loaded_quota(limit={"gpu": 3}).limit == (3000, None, None)


def test_weight() -> None:
    """A single number is the weight of all three resources."""
    assert loaded_quota(overQuotaWeight=2).weight == (2, 2, 2)
    assert loaded_quota(overQuotaWeight={"gpu": 0}).weight == (0, 1, 1)


def test_pools_have_their_own_terms() -> None:
    """Fields outside `pools` belong to pool default."""
    queue = loaded_cluster(projects=[{"name": "a", "quota": {"gpu": 1}, "pools": {"h": {"quota": {"gpu": 2}}}}]).queues[
        "a"
    ]
    assert (queue.pool_quota("default").quota[0], queue.pool_quota("h").quota[0]) == (1000, 2000)


def test_tree() -> None:
    """Departments and projects form one tree of any depth."""
    loaded = loaded_cluster(
        departments=[{"name": "d"}],
        projects=[{"name": "a", "department": "d"}, {"name": "b", "parent": "a"}, {"name": "c"}],
    )
    assert {name: queue.parent for name, queue in loaded.queues.items()} == {"d": "", "a": "d", "b": "a", "c": ""}


def test_node_types_by_type_of_workload() -> None:
    """A project's node types apply to workloads of the named type only."""
    loaded = loaded_cluster(
        projects=[{"name": "a", "nodeTypes": {"training": ["dgx"]}}],
        workloads=[{"name": "t", "project": "a"}, {"name": "i", "project": "a", "type": "interactive"}],
    )
    assert [loaded.jobs[name].tasks[0].node_types for name in "ti"] == [("dgx",), ()]


def test_list_of_gpus() -> None:
    """`gpus` is a number or a list."""
    assert [device.memory_mib for device in loaded_node(gpus=2, gpuMemoryMiB=7).devices] == [7, 7]
    gpus = [{"index": 3, "memoryMiB": 5, "model": "V100", "mig": None}, {"index": 4}]
    assert [(device.index, device.memory_mib) for device in loaded_node(gpus=gpus, gpuMemoryMiB=7).devices] == [
        (3, 5),
        (4, 7),
    ]


def test_mixed_slices() -> None:
    """MIG slices of a mixed node are devices, and replace the partitioned GPUs."""
    loaded = loaded_node(gpus=1, migStrategy="mixed", mig={"1g.5gb": 2, "2g.10gb": 1})
    assert [(device.profile, device.memory_mib) for device in loaded.devices] == [
        ("1g.5gb", 5120), ("1g.5gb", 5120), ("2g.10gb", 10240),
    ]  # fmt: skip
    assert loaded.mig == "mixed"


def test_single_slices() -> None:
    """With strategy single, slices are whole GPUs."""
    loaded = loaded_node(migStrategy="single", mig={"1g.5gb": 3})
    assert [device.profile for device in loaded.devices] == ["", "", ""]


def test_node_without_cpu_and_memory() -> None:
    """A node without CPU and memory has enough for any task, without overflow over many nodes."""
    loaded = loaded_node()
    assert loaded.cpu >= 10**6
    assert loaded.memory * 100_000 < 2**63


def test_whole_gpus_take_the_first_free() -> None:
    """Running tasks without device indices get the first free devices, after tasks with indices."""
    unplaced, placed = {"request": {"gpu": 1}}, {"request": {"gpu": 1}, "devices": [0]}
    assert devices_of(unplaced, placed) == {"w-0-0": [1], "w-1-0": [0]}


def test_fraction_of_its_own() -> None:
    """A running fraction without devices or group has a GPU of its own."""
    part = {"request": {"gpuFraction": 0.5}}
    assert devices_of(part, part) == {"w-0-0": [0], "w-1-0": [1]}


def test_share_group() -> None:
    """Fractions of one share group use one device."""
    part = {"request": {"gpuFraction": 0.5}, "shareGroup": "x"}
    other = {"request": {"gpuFraction": 0.3}, "devices": [0]}
    assert devices_of(part, other, part) == {"w-0-0": [1], "w-1-0": [0], "w-2-0": [1]}


def test_mig_slices_are_held() -> None:
    """A running task with a MIG request holds devices of its profile."""
    nodes = [{"name": "n1", "migStrategy": "mixed", "mig": {"1g.5gb": 2, "2g.10gb": 1}}]
    assert devices_of({"request": {"mig": {"2g.10gb": 1}}}, {"request": {"mig": {"1g.5gb": 2}}}, nodes=nodes) == {
        "w-0-0": [2],
        "w-1-0": [0, 1],
    }


def test_memory_is_held() -> None:
    """A running memory request holds its MiB and the matching share of the device."""
    task = {"state": "running", "node": "n1", "request": {"gpuMemoryMiB": 250}}
    assert loaded_job(tasks=[task]).tasks[0].shares == (DeviceShare(0, 250, 250),)


def test_reserved_uses_released_devices() -> None:
    """A reserved task without devices uses devices that are being released, not those of running tasks."""
    tasks = [
        {"state": "running", "node": "n1", "request": {"gpu": 1}, "devices": [0]},
        {"state": "terminating", "node": "n1", "request": {"gpu": 1}, "devices": [1]},
        {"state": "reserved", "node": "n1", "request": {"gpu": 1}},
    ]
    assert [share.index for share in loaded_job(tasks=tasks).tasks[2].shares] == [1]


@pytest.mark.parametrize(
    "tasks, wanted",
    [
        ([{"request": {"gpu": 3}}], "tasks[0].node: node n1 has too few free GPUs"),
        ([{"request": {"gpu": 1}, "devices": [7]}], "tasks[0].devices[0]: node n1 has no GPU 7"),
        ([{"request": {"gpu": 2}, "devices": [0]}], "tasks[0].devices: must be 2 different GPUs"),
        ([{"request": {"gpu": 1}, "devices": [0]}] * 2, "tasks[1].node: GPU 0 of node n1 does not have as much left"),
        ([{"request": {"gpuFraction": 0.6}, "shareGroup": "x"}] * 2, "tasks[1].node: GPU 0 of node n1 does not"),
    ],
)
def test_overcommitted_node_is_refused(tasks: list[dict[str, Any]], wanted: str) -> None:
    """A file in which a node holds more than it has is refused, with the task that exceeds it."""
    with pytest.raises(Invalid, match="workloads") as caught:
        devices_of(*tasks)
    assert wanted in str(caught.value.faults[0])


def test_share_group_of_one_node() -> None:
    """A share group belongs to one node."""
    part = {"state": "running", "request": {"gpuFraction": 0.5}, "shareGroup": "x"}
    tasks = [{**part, "node": "n1"}, {**part, "node": "n2"}]
    with pytest.raises(Invalid, match=r"tasks\[1\].shareGroup: belongs to GPU 0 of node n1"):
        loaded_cluster(
            nodes=[{"name": "n1", "gpus": 1}, {"name": "n2", "gpus": 1}],
            workloads=[{"name": "w", "project": "a", "tasks": tasks}],
        )


def test_policy() -> None:
    """Every field of a policy is read."""
    policy = loaded_cluster(
        policy={
            "steps": ["reclaim", "allocate"], "spare": "weight", "placement": {"gpu": "spread", "device": "spread"},
            "staleGangGrace": -1, "terminatingGrace": 5, "usageWeight": 2, "victims": "newest",
            "disruptionBound": None, "shareUnit": "whole",
        }
    ).policy  # fmt: skip
    assert policy.steps == ("allocate", "reclaim")
    assert (policy.spare, policy.gpu, policy.cpu, policy.device) == ("weight", "spread", "binpack", "spread")
    assert (policy.stale_grace, policy.terminating_grace, policy.usage_weight) == (-1, 5, 2)
    assert (policy.victims, policy.disruption_bound, policy.share_unit) == ("newest", None, "whole")


def test_claims_and_topologies() -> None:
    """Volume claims are those listed; a single topology is named default."""
    loaded = loaded_cluster(volumeClaims=["data"], topology=["zone", "rack"]).snapshot()
    assert (loaded.claims, loaded.topologies) == (frozenset({"data"}), {"default": ("zone", "rack")})
    assert loaded_cluster().snapshot().claims == frozenset()


def test_loading_is_linear() -> None:
    """Loading is linear in the number of workloads."""

    def steps(count: int) -> int:
        nodes = [{"name": f"n{index}", "gpus": 8} for index in range(count // 8)]
        task = [{"state": "running", "node": f"n{index % len(nodes)}"} for index in range(count)]
        workloads = [
            {"name": f"w{index}", "project": "a", "request": {"gpu": 1}, "tasks": [task[index]]}
            for index in range(count)
        ]
        calls = 0

        def called(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(called)
        try:
            loaded_cluster(nodes=nodes, workloads=workloads)
        finally:
            sys.setprofile(None)
        return calls

    assert steps(2000) < 12 * steps(200)
