"""Objects that tests create with kubectl: pods, workloads, volumes and claims."""

from __future__ import annotations

from typing import Any


def pod_manifest(name: str, namespace: str, gpus: int, scheduler: str = "runai-scheduler") -> dict[str, Any]:
    """A pod that no controller owns."""
    container = {"name": "main", "image": "job", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": scheduler, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def workload_manifest(name: str, namespace: str, gpus: float, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "aliquot.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"type": "training", "image": "job", "compute": {"gpu": gpus}, "preemptionGrace": 1, **spec},
    }


def storage_class(name: str) -> dict[str, Any]:
    """Its volumes exist and are bound when the first pod needs one."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, storage_class: str, node: str = "") -> dict[str, Any]:
    """A folder of the nodes, or only of the given node."""
    on_node = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": storage_class,
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "hostPath": {"path": f"/tmp/{name}", "type": "DirectoryOrCreate"},
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": [on_node]}}} if node else {}),
        },
    }


def claim(name: str, namespace: str, storage_class: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def training(name: str, namespace: str, gpus: int) -> dict[str, Any]:
    """A TrainingWorkload of Run:ai."""
    return {
        "apiVersion": "run.ai/v2alpha1",
        "kind": "TrainingWorkload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"image": {"value": "job"}, "gpu": {"value": str(gpus)}},
    }
