"""`simulate --from-cluster`: the live cluster as a file that `simulate` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli.manifests import Source, parsed
from aliquot.core.model import Share, TaskState
from aliquot.sim import worlds
from unit.cli.world import World

GPUS = [{"index": index, "memoryMiB": 1000, "model": "V100"} for index in range(2)]


def node(world: World, name: str, **parts: Any) -> None:
    marks = {"annotations": {"aliquot.dev/devices": json.dumps(GPUS)}, "labels": {"run.ai/type": "dgx"}}
    world.put("node", name, metadata=marks, **parts)
    world.told(
        "node",
        name,
        capacity={"cpu": "8", "memory": "16Gi", "pods": "50"},
        conditions=[{"type": "Ready", "status": "True"}],
    )


def pod(
    world: World, workload: str, project: str, where: str = "", share: dict[str, int] | None = None, **more: Any
) -> None:
    space = f"runai-{project}"
    notes = {**more.pop("annotations", {}), **({"aliquot.dev/devices": json.dumps([share])} if share else {})}
    limits = {"nvidia.com/gpu": more.pop("gpus")} if "gpus" in more else {}
    spec = {
        "schedulerName": "aliquot",
        "priorityClassName": more.pop("priority", "train"),
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": limits}}],
        **({"nodeName": where} if where else {}),
        **more,
    }
    marks = {"labels": {"aliquot.dev/workload": workload}, "annotations": notes}
    world.put("pod", f"{workload}-0-0", space, metadata=marks, spec=spec)


@pytest.fixture
def busy(world: World) -> World:
    """A node with a fraction and a whole GPU in use, and a job that waits."""
    world.put("department", "default", spec={"quota": {"gpu": 2}})
    world.project("team-a", quota={"gpu": 1.5, "memory": "64Gi"}, overQuota=False, nodeTypes={"training": ["dgx"]})
    world.project("team-b", quota={"gpu": 0.5}, reclaimMinRuntime="5m")
    node(world, "n1")
    pod(
        world, "half", "team-b", "n1", {"index": 1, "milli": 500, "memoryMiB": 500}, priority="build",
        annotations={"aliquot.dev/gpu-fraction": "0.5"},
    )  # fmt: skip
    pod(world, "one", "team-a", "n1", {"index": 0, "milli": 1000, "memoryMiB": 1000}, gpus="1")
    pod(world, "waits", "team-a", gpus="2")
    return world


def test_round_trip(busy: World) -> None:
    """What is written is read again, and says what the cluster holds."""
    (made,) = worlds(_written(busy))
    (place,) = made.nodes.values()
    assert ([one.memory_mib for one in place.devices], place.cpu, place.memory) == ([1000, 1000], 8000, 16 << 30)
    assert (place.pods, place.ready, place.labels["run.ai/type"]) == (50, True, "dgx")
    assert made.queues["team-a"].terms("default").quota == (1500, None, 64 << 30)
    assert made.queues["team-a"].terms("default").over_quota is False
    assert (made.queues["team-b"].parent, made.queues["team-b"].reclaim_min_runtime) == ("default", 300)
    half, one, waits = (made.jobs[name].tasks[0] for name in ("half", "one", "waits"))
    assert (half.state, half.node, half.shares) == (TaskState.RUNNING, "n1", (Share(1, 500, 500),))
    assert (one.shares, one.request.cpu, one.request.memory) == ((Share(0, 1000, 1000),), 500, 1 << 30)
    assert (waits.state, waits.request.devices) == (TaskState.PENDING, 2)
    assert [made.jobs[name].preemptible for name in ("half", "one")] == [False, True]


def test_played_again(busy: World, tmp_path: Path) -> None:
    """The file that is written can be played at once."""
    path = tmp_path / "cluster.yaml"
    assert busy.ok("simulate", "--from-cluster", str(path)) == ""
    told = json.loads(busy.ok("simulate", str(path)))
    assert {name: each["state"] for name, each in told["final"]["workloads"].items()} == {
        "half": "running",
        "one": "running",
        "waits": "pending",
    }


def test_file_is_not_overwritten(busy: World, tmp_path: Path) -> None:
    """A file that is there is left alone."""
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    result = busy("simulate", "--from-cluster", str(path))
    assert result.exit_code == 1
    assert path.read_text() == "mine"


def test_same_name_in_two_projects(busy: World) -> None:
    """Workloads that share a name are told apart."""
    pod(busy, "one", "team-b", gpus="1")
    (made,) = worlds(_written(busy))
    assert {"runai-team-a/one", "runai-team-b/one"} <= set(made.jobs)


def test_project_called_as_its_department(world: World) -> None:
    """Queues of a scenario are known by name alone, so a department steps aside."""
    world.put("department", "default")
    world.project("default")
    (made,) = worlds(_written(world))
    assert made.queues["default"].parent == "department default"


def test_pod_of_nobody_keeps_its_gpu(world: World) -> None:
    """What holds a GPU outside every project still holds it."""
    node(world, "n1")
    world.put("namespace", "runai-x")
    pod(world, "stranger", "x", "n1", {"index": 0, "milli": 1000, "memoryMiB": 1000}, gpus="1")
    (made,) = worlds(_written(world))
    assert made.jobs["stranger"].tasks[0].shares == (Share(0, 1000, 1000),)


def test_policy_of_the_cluster(world: World) -> None:
    """The scheduling policy of the default pool comes along."""
    world.put("schedulingpolicy", "main", spec={"spare": "weight", "disruptionBound": -1, "terminatingGrace": "2m"})
    (made,) = worlds(_written(world))
    assert (made.policy.spare, made.policy.disruption_bound, made.policy.terminating_grace) == ("weight", None, 120)


def _written(world: World) -> Any:
    """The file, as the program itself reads it."""
    (data,) = parsed(Source("x.yaml", world.ok("simulate", "--from-cluster")))
    return data


def test_odd_pods_do_not_spoil_the_file(world: World) -> None:
    """A pod on a node that has left, or with a toleration that has a time, is no reason to refuse the file."""
    world.project("team-a")
    node(world, "n1")
    pod(world, "lost", "team-a", "gone", {"index": 0, "milli": 1000, "memoryMiB": 1000}, gpus="1")
    pod(world, "odd", "team-a", "n1", {"index": 0, "milli": 1000, "memoryMiB": 1000}, gpus="2")
    pod(world, "soft", "team-a", tolerations=[{"key": "x", "operator": "Exists", "tolerationSeconds": 300}])
    (made,) = worlds(_written(world))
    assert sorted(made.jobs) == ["odd", "soft"]
    assert len(made.jobs["odd"].tasks[0].shares) == 2
