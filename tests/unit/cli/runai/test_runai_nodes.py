"""`list nodes`, `top node` and `describe node`: capacity, allocation and the pods that use it."""

from __future__ import annotations

import json

import pytest

from support.cli.environment import CliEnvironment

V100 = "Tesla V100-SXM2-32GB"


@pytest.fixture
def cluster(cli: CliEnvironment) -> CliEnvironment:
    devices = [{"index": index, "model": V100, "memoryMiB": 32510} for index in range(2)]
    cli.create_project("team-a")
    for name in ("dgx1-1", "dgx1-2"):
        metadata = {
            "labels": {"aliquot.dev/simulated": "true"},
            "annotations": {"aliquot.dev/devices": json.dumps(devices)},
        }
        status = {
            "allocatable": {"cpu": "40", "memory": "64Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        cli.create("node", name, metadata=metadata, status=status)
    shares = [{"index": 1, "milli": 500, "memoryMiB": 16255}]
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    for name, phase in (("x-0-0", "Running"), ("old-0-0", "Succeeded")):
        cli.create(
            "pod", name, "runai-team-a", metadata={"annotations": {"aliquot.dev/devices": json.dumps(shares)}},
            spec={"nodeName": "dgx1-1", "containers": [{"name": "main", "image": "python", "resources": resources}]},
        )  # fmt: skip
        cli.set_status("pod", name, "runai-team-a", phase=phase)
    return cli


def test_list_nodes(cluster: CliEnvironment) -> None:
    """Pods that have ended do not count; simulated nodes are marked."""
    assert cluster.run_runai("list nodes").splitlines() == [
        "NODE     GPU TYPE               GPUs (Allocated/Total)   GPU UTIL   GPU MEM          CPU      "
        "MEM          STATUS",
        "dgx1-1   Tesla V100-SXM2-32GB   0.5/2                    -          16255/65020MiB   0.5/40   1.0/64.0Gi   "
        "Ready (simulated)",
        "dgx1-2   Tesla V100-SXM2-32GB   0/2                      -          0/65020MiB       0/40     0.0/64.0Gi   "
        "Ready (simulated)",
    ]
    assert cluster.run_runai("top node") == cluster.run_runai("list nodes")
    assert len(cluster.run_runai("list nodes dgx1-2").splitlines()) == 2


def test_reservation_pods_do_not_count(cluster: CliEnvironment) -> None:
    """A reservation pod has the whole GPU; only the pods that share the GPU count."""
    before = cluster.run_runai("list nodes")
    whole_gpu = json.dumps([{"index": 1, "milli": 1000, "memoryMiB": 32510}])
    cluster.create("namespace", "runai-reservation")
    cluster.create(
        "pod", "gpu-1-dgx1-1", "runai-reservation", metadata={"annotations": {"aliquot.dev/devices": whole_gpu}},
        spec={"nodeName": "dgx1-1", "containers": [{"name": "hold", "image": "aliquot"}]},
    )  # fmt: skip
    cluster.set_status("pod", "gpu-1-dgx1-1", "runai-reservation", phase="Running")

    assert cluster.run_runai("list nodes") == before


def test_pods_of_other_schedulers_count(cluster: CliEnvironment) -> None:
    """Only the number of their GPUs is known, so they are shown on free GPUs."""
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    cluster.create("namespace", "other")
    cluster.create(
        "pod", "foreign", "other",
        spec={"nodeName": "dgx1-1", "containers": [{"name": "main", "image": "job", "resources": resources}]},
    )  # fmt: skip
    cluster.set_status("pod", "foreign", "other", phase="Running")

    assert "1.5/2" in cluster.run_runai("list nodes dgx1-1")
    rows = [line.split() for line in cluster.run_runai("top node dgx1-1 -d").splitlines()[1:]]
    assert [(row[1], row[-1]) for row in rows] == [("0", "other/foreign"), ("1", "team-a/x-0-0")]


def test_each_gpu(cluster: CliEnvironment) -> None:
    lines = cluster.run_runai("top node dgx1-1 -d").splitlines()
    assert lines[0].split() == ["NODE", "GPU", "TYPE", "ALLOCATED", "MEM", "JOBS"]
    assert lines[2].split()[-3:] == ["0.5", "16255/32510MiB", "team-a/x-0-0"]


def test_describe_node(cluster: CliEnvironment) -> None:
    out = cluster.run_runai("describe node dgx1-1")
    assert "GPUs (Allocated/Total): 0.5/2\n" in out
    assert "STATUS: Ready (simulated)\n" in out
    assert "team-a/x-0-0" in out
    assert "NODE: dgx1-2" in cluster.run_runai("describe node")


def test_describe_node_has_its_conditions(cluster: CliEnvironment) -> None:
    """The conditions have the agent's message about GPU sharing and the driver."""
    sharing = {"type": "GPUSharing", "status": "True", "reason": "Shim", "message": "library 1, driver 580: because"}
    cluster.create("node", "real", status={"conditions": [{"type": "Ready", "status": "True"}, sharing]})

    lines = [line.split() for line in cluster.run_runai("describe node real").splitlines()]

    assert ["GPUSharing", "True", "Shim", "library", "1,", "driver", "580:", "because"] in lines


@pytest.mark.parametrize(("annotation", "cell"), [("83,0", "42%"), ("", "-"), ("lots", "-")])
def test_gpu_utilization(cluster: CliEnvironment, annotation: str, cell: str) -> None:
    """The mean of all GPUs, idle ones included; a dash where it is not measured."""
    annotations = {"aliquot.dev/devices": json.dumps([{"index": 0}, {"index": 1}]), "aliquot.dev/gpu-busy": annotation}
    cluster.create("node", "real", metadata={"annotations": annotations})

    assert cluster.run_runai("list nodes real").splitlines()[1].split()[3] == cell


def test_unknown_node(cluster: CliEnvironment) -> None:
    for line in ("list nodes nobody", "describe node nobody", "top node nobody"):
        assert cluster.invoke_runai(line).stderr.startswith("error: node 'nobody' does not exist\n")


def test_an_invalid_annotation(cluster: CliEnvironment) -> None:
    cluster.create("node", "odd", metadata={"annotations": {"aliquot.dev/devices": "{"}})
    assert cluster.run_runai("list nodes").splitlines()[3].split() == [
        "odd",
        "-",
        "0/0",
        "-",
        "-",
        "0/0",
        "0.0/0.0Gi",
        "NotReady",
    ]
