"""Memory of objects in caches."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from aliquot.api import from_json

WORKLOAD = {
    "apiVersion": "aliquot.dev/v1",
    "kind": "Workload",
    "metadata": {
        "name": "train-@",
        "namespace": "runai-team-a",
        "uid": "3f0f3a2e-7e0e-4b7e-9d59-@",
        "resourceVersion": "@",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "x", "team": "a"},
    },
    "spec": {
        "type": "training",
        "user": "root",
        "image": "example.com/quickstart",
        "command": ["python"],
        "args": ["train.py", "--epochs", "10"],
        "compute": {"gpu": 0.5, "cpu": 1, "memory": "1Gi"},
        "environment": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "storage": {"pvc": [{"claimName": "data", "path": "/data", "existing": True}]},
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}],
        "pods": {"desired": 1, "running": 1, "ready": 1},
        "requested": {"gpu": 0.5, "cpu": 1, "memory": "1Gi"},
        "allocated": {"gpu": 0.5, "cpu": 1, "memory": "1Gi"},
        "nodes": ["node-1"],
        "startedAt": "2026-01-01T00:00:10Z",
    },
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-@-0",
        "namespace": "runai-team-a",
        "uid": "3f0f3a2e-7e0e-4b7e-9d59-@",
        "resourceVersion": "@",
        "labels": {"aliquot.dev/workload": "train-@", "aliquot.dev/pod-index": "0"},
        "annotations": {"aliquot.dev/devices": '[{"index":3,"milli":500,"memoryMiB":16255}]'},
        "ownerReferences": [{"apiVersion": "aliquot.dev/v1", "kind": "Workload", "name": "train-@", "uid": "@"}],
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "example.com/quickstart",
                "command": ["python"],
                "args": ["train.py", "--epochs", "10"],
                "env": [{"name": name, "value": "v"} for name in ("JOB_NAME", "JOB_UUID", "POD_INDEX", "NODE_NAME")],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeName": "node-1",
        "schedulerName": "aliquot",
        "restartPolicy": "Never",
    },
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}
            for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "image": "example.com/quickstart"}],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": "2026-01-01T00:00:05Z",
    },
}


@pytest.mark.parametrize("example", [WORKLOAD, POD], ids=["workload", "pod"])
def test_typical_object_is_small(example: dict[str, Any]) -> None:
    """A typical workload and a typical pod take less than 5 KB of memory each."""
    text, count = json.dumps(example), 500
    from_json(example, strict=True)  # builds the validator, which must not be measured

    tracemalloc.start()
    objects = [from_json(json.loads(text.replace("@", f"{number:012d}"))) for number in range(count)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size / len(objects) < 5_000
