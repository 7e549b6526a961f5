"""Rules that span fields are checked in strict mode, and not for stored objects."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.api import from_json
from unit.api.test_faults import faults


@pytest.mark.parametrize("gpu", [0, 1, 2, 64, 0.5, "0.5", 0.001, 0.999, 1.0, 2.0])
def test_gpus_are_whole_or_a_part_of_one(gpu: object) -> None:
    """A pod may request whole GPUs or a fraction of one."""
    assert faults("Workload", {"compute": {"gpu": gpu}}) == {}


@pytest.mark.parametrize("gpu", [1.5, "2.25", 1.001])
def test_one_and_a_half_gpus_are_refused(gpu: object) -> None:
    """A pod cannot request one and a half GPUs, and the message says what is allowed."""
    text = f"must be a whole number of GPUs, or a fraction of one below 1, not {gpu}"

    assert faults("Workload", {"compute": {"gpu": gpu}}) == {"spec.compute.gpu": text}


@pytest.mark.parametrize(
    ("compute", "path", "text"),
    [
        ({"gpu": 1, "gpuMemory": "4G"}, "spec.compute", "must have only one of gpu, gpuMemory and migProfile"),
        ({"gpu": 0.5, "gpuLimit": 0.25}, "spec.compute.gpuLimit", "must not be less than gpu"),
        ({"gpu": 0.5, "gpuLimit": 2}, "spec.compute.gpuLimit", "must be a part of one GPU, at most 1, not 2"),
        ({"gpuMemory": "4G", "gpuMemoryLimit": "1G"}, "spec.compute.gpuMemoryLimit", "must not be less than gpuMemory"),
        ({"cpu": 2, "cpuLimit": 1}, "spec.compute.cpuLimit", "must not be less than cpu"),
        ({"memory": "2G", "memoryLimit": "1G"}, "spec.compute.memoryLimit", "must not be less than memory"),
        ({"gpu": 2, "gpuDevices": 2}, "spec.compute.gpuDevices", "needs a part of a GPU (gpu below 1) or gpuMemory"),
        ({"gpu": 1, "mps": True}, "spec.compute.mps", "needs a part of a GPU (gpu below 1) or gpuMemory"),
        ({"migProfile": "big"}, "spec.compute.migProfile", r"must match ^[1-7]g\.[0-9]+gb$, not 'big'"),
    ],
)
def test_contradicting_requests_are_refused(compute: dict[str, Any], path: str, text: str) -> None:
    """Contradicting requests are refused with the path of the field to change."""
    assert faults("Workload", {"compute": compute}) == {path: text}


@pytest.mark.parametrize(
    ("spec", "path", "text"),
    [
        ({"serving": {}}, "spec.serving", "is for type inference only"),
        (
            {"type": "inference", "distributed": {"framework": "mpi"}},
            "spec.distributed",
            "is not for type inference",
        ),
        (
            {"type": "inference", "storage": {"s3": [{"bucket": "b", "path": "/b"}]}},
            "spec.storage.s3",
            "is not for type inference",
        ),
        (
            {"type": "inference", "serving": {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}},
            "spec.serving.autoscaling.minReplicas",
            "must not be more than maxReplicas",
        ),
        (
            {"type": "inference", "serving": {"autoscaling": {"minReplicas": 0, "metric": "latency"}}},
            "spec.serving.autoscaling.minReplicas",
            "must be at least 1 with metric latency, which needs a running replica",
        ),
        (
            {"type": "inference", "serving": {"replicas": 2, "autoscaling": {}}},
            "spec.serving.replicas",
            "must not be given together with autoscaling",
        ),
        ({"parallelism": 3, "completions": 2}, "spec.parallelism", "must not be more than completions"),
        ({"preemptionGrace": "6m"}, "spec.preemptionGrace", "must be at most 300 seconds"),
        ({"environment": [{"name": "A"}, {"name": "A"}]}, "spec.environment", "has A twice"),
        (
            {"storage": {"pvc": [{"path": "/x", "existing": True}]}},
            "spec.storage.pvc[0].claimName",
            "is required for a claim that exists",
        ),
        (
            {"storage": {"pvc": [{"path": "/x", "existing": False}]}},
            "spec.storage.pvc[0].size",
            "is required for a new claim",
        ),
        (
            {"distributed": {"framework": "mpi", "minReplicas": 1}},
            "spec.distributed",
            "minReplicas and maxReplicas are for framework pytorch only",
        ),
        (
            {"distributed": {"framework": "pytorch", "minReplicas": 3, "maxReplicas": 2}},
            "spec.distributed.minReplicas",
            "must not be more than maxReplicas",
        ),
        (
            {"distributed": {"framework": "pytorch", "slotsPerWorker": 2}},
            "spec.distributed.slotsPerWorker",
            "is for framework mpi only",
        ),
        (
            {"distributed": {"framework": "xgboost", "noMaster": True}},
            "spec.distributed.noMaster",
            "is for frameworks pytorch and tensorflow only",
        ),
        (
            {"distributed": {"framework": "mpi", "master": {"compute": {"gpu": 1, "gpuMemory": "1G"}}}},
            "spec.distributed.master.compute",
            "must have only one of gpu, gpuMemory and migProfile",
        ),
    ],
)
def test_contradicting_fields_are_refused(spec: dict[str, Any], path: str, text: str) -> None:
    """Fields that exclude each other are refused with the path of the field to change."""
    assert faults("Workload", spec) == {path: text}


@pytest.mark.parametrize("kind", ["Department", "Project"])
def test_default_pool_is_not_in_pools(kind: str) -> None:
    """The quota of pool default is written beside pools, so that there cannot be two of them."""
    text = "must not name pool default: the quota beside pools is the one of pool default"

    assert faults(kind, {"pools": {"default": {"quota": {"gpu": 1}}}}) == {"spec.pools": text}


def test_pool_needs_a_label() -> None:
    """Every pool except the default one needs a label that selects its nodes."""
    assert faults("NodePool", {}, name="h100") == {"spec.labelKey": "is required for every pool but default"}
    assert faults("NodePool", {}, name="default") == {}


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        ({"kind": "cluster", "name": "x"}, "must be empty for the cluster"),
        ({"kind": "project"}, "is required for a project"),
        ({"kind": "department", "name": ""}, "is required for a department"),
    ],
)
def test_scope_needs_a_name(scope: dict[str, str], text: str) -> None:
    """A rule for a project or department has its name; one for the cluster has none."""
    spec = {"subject": {"kind": "user", "name": "ann"}, "role": "viewer", "scope": scope}

    assert faults("AccessRule", spec) == {"spec.scope.name": text}


def test_stored_objects_stay_readable() -> None:
    """A stored object that breaks a rule can still be read."""
    data = {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": "x"},
        "spec": {"compute": {"gpu": 1, "gpuMemory": "4G"}},
    }

    assert from_json(data).spec.compute.gpu == 1000
