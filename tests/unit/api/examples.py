"""An example of each kind with as many fields as make sense together."""

from __future__ import annotations

from typing import Any

OURS = "aliquot.dev/v1"


def _example(api_version: str, kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": {"team": "a"}}, **parts}


_TERMS = {
    "quota": {"gpu": 2.5, "cpu": 16, "memory": "64Gi"},
    "limit": {"gpu": 8, "cpu": 32.5, "memory": "128Gi"},
    "overQuota": False,
    "overQuotaWeight": {"gpu": 2, "cpu": 1, "memory": 0.5},
    "priority": 110,
}
_QUEUE = {
    **_TERMS,
    "pools": {"h100": _TERMS},
    "defaultPools": ["h100", "default"],
    "nodeTypes": {"training": ["dgx-2"], "interactive": ["small"]},
    "rules": {
        "training": {"durationLimit": 86400, "idleLimit": 3600},
        "interactive": {"durationLimit": 28800},
        "interactivePreemptible": {"idleLimit": 600},
    },
    "reclaimMinRuntime": 60,
    "preemptMinRuntime": 30,
    "description": "Vision",
}
_CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Done",
    "message": "All is well",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "observedGeneration": 2,
}
_USE = {"allocated": {"gpu": 1.5}, "requested": {"gpu": 2, "memory": "1Gi"}, "fairShare": {"gpu": 3.125}}

DEPARTMENT = _example(
    OURS, "Department", "research", spec=_QUEUE,
    status={
        "phase": "Ready", "projects": 3, "allocated": {"gpu": 1.5}, "requested": {"gpu": 2.5}, "pools": {"h100": _USE},
        "conditions": [_CONDITION],
    },
)  # fmt: skip
PROJECT = _example(
    OURS, "Project", "team-a", spec={"department": "research", "namespace": "vision", **_QUEUE},
    status={"phase": "Ready", "namespace": "vision", "allocated": {"gpu": 1.5}, "pools": {"h100": _USE}},
)  # fmt: skip
NODE_POOL = _example(
    OURS, "NodePool", "h100",
    spec={
        "labelKey": "gpu", "labelValue": "h100", "placement": {"gpu": "spread", "cpu": "binpack", "device": "spread"},
        "topology": ["zone", "rack"], "workloadsPerGpu": 3, "description": "The new ones",
    },
    status={"phase": "Ready", "nodes": ["n1", "n2"], "total": {"gpu": 16, "cpu": 192}, "allocated": {"gpu": 3.5}},
)  # fmt: skip
SCHEDULING_POLICY = _example(
    OURS, "SchedulingPolicy", "fair",
    spec={
        "pools": ["h100"], "steps": ["allocate", "reclaim", "stale-gang"], "spare": "weight",
        "placement": {"gpu": "binpack"}, "staleGangGrace": -1, "terminatingGrace": 600,
        "usage": {"weight": 0.5, "window": 604800, "windowType": "tumbling", "halfLife": 86400},
        "victims": "newest", "disruptionBound": 2.5, "shareUnit": "whole", "saturationMultiplier": 1.25,
        "departmentFirst": False, "preemptionGrace": 30, "terminateAfterPreemption": True, "restartsPerHour": 4,
    },
    status={"pools": ["h100"], "observedGeneration": 1, "conditions": [_CONDITION]},
)  # fmt: skip

_SETTINGS: dict[str, Any] = {
    "description": "ResNet-50",
    "image": "example.com/train:1", "imagePullPolicy": "IfNotPresent", "imagePullSecrets": ["registry"],
    "command": ["python", "-u"], "args": ["train.py", "--epochs=10"], "workingDir": "/work",
    "environment": [
        {"name": "A", "value": "1"}, {"name": "B", "secret": {"name": "keys", "key": "b"}},
        {"name": "C", "configMap": {"name": "conf", "key": "c"}}, {"name": "D", "podField": "metadata.name"},
        {"name": "E", "exclude": True},
    ],
    "stdin": True, "tty": True, "createHomeDir": True,
    "labels": {"app": "x"}, "annotations": {"note": "y z"},
    "probes": {
        "readiness": {"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 5, "failureThreshold": 3},
        "liveness": {"tcpPort": 8080, "initialDelaySeconds": 10, "timeoutSeconds": 2},
        "startup": {"command": ["true"], "successThreshold": 1},
    },
    "compute": {
        "gpu": 0.5, "gpuLimit": 0.75, "gpuDevices": 2, "mps": True, "cpu": 0.25, "cpuLimit": 4, "memory": "1Gi",
        "memoryLimit": "2Gi", "largeShm": True,
        "extendedResources": [{"resource": "rdma/hca", "quantity": "1"}, {"resource": "x/y", "exclude": True}],
    },
    "storage": {
        "hostPath": [{"path": "/mnt", "mountPath": "/mnt", "readOnly": True, "mountPropagation": "HostToContainer"}],
        "nfs": [{"server": "filer", "path": "/exports", "mountPath": "/nfs", "name": "shared"}],
        "pvc": [
            {"claimName": "data", "path": "/data", "existing": True, "readOnly": True},
            {"path": "/scratch", "existing": False, "ephemeral": True, "storageClass": "fast", "size": "10Gi",
             "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "volumeMode": "Filesystem"},
        ],
        "git": [{"repository": "https://example.com/r.git", "path": "/code", "branch": "main", "secret": "git"}],
        "configMap": [{"source": "conf", "path": "/etc/conf", "subPath": "a.yaml", "defaultMode": 420}],
        "secret": [{"source": "keys", "path": "/etc/keys"}],
        "dataVolume": [{"volume": "imagenet", "path": "/imagenet"}],
        "mountPropagation": "None", "exclude": ["old-data"],
    },
    "security": {
        "runAsUser": True, "uidGidSource": "custom", "runAsUid": 1000, "runAsGid": 100, "supplementalGroups": [7, 8],
        "runAsNonRoot": True, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
        "capabilities": ["SYS_PTRACE"], "seccompProfileType": "RuntimeDefault", "hostIpc": True, "hostNetwork": True,
    },
    "ports": [{"container": 22, "external": 30022, "serviceType": "nodeport", "protocol": "TCP", "name": "ssh"}],
    "exposedUrls": [
        {"container": 8888, "url": "https://x.example.com", "toolType": "jupyter-notebook", "toolName": "Jupyter",
         "authorizationType": "authorizedUsersOrGroups", "authorizedUsers": ["ann"], "authorizedGroups": ["vision"]},
    ],
    "serviceType": "ingress", "ingressUrl": "https://y.example.com", "addresses": ["localhost"],
    "jupyter": True, "notebookToken": "token", "tensorboard": True, "tensorboardLogdir": "/logs",
    "nodeType": "dgx-2", "nodePools": ["h100", "default"], "nodeSelector": {"zone": "z1"},
    "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5,
                     "name": "t"}],
    "topology": {"name": "net", "required": "rack", "preferred": "host"},
    "podAffinity": {"labels": {"app": "x"}, "topologyKey": "rack", "schedulingRule": "Preferred"},
    "podAntiAffinity": {"labels": {"app": "y"}, "topologyKey": "host"},
    "schedulerName": "aliquot", "priorityClass": "train", "priority": 50, "preemptible": True, "preemptionLimit": 3,
    "preemptionDelay": 60, "preemptionGrace": 120, "terminateAfterPreemption": False, "minAvailable": 2,
    "minSubgroups": 1, "subgroups": [{"name": "workers", "minAvailable": 2, "topology": {"required": "rack"}}],
    "staleGangGrace": 60, "elastic": True, "completions": 12, "parallelism": 3, "backoffLimit": 6,
    "autoDeletionTimeAfterCompletionSeconds": 3600, "podRunningTimeout": 600,
}  # fmt: skip
WORKLOAD = _example(
    OURS, "Workload", "train-1",
    spec={
        "type": "training", "active": False, "user": "root", "subject": "ann", "template": "big", "namePrefix": "train",
        **_SETTINGS,
        "distributed": {
            "framework": "pytorch", "workers": 4, "minReplicas": 2, "maxReplicas": 8, "noMaster": False,
            "cleanPodPolicy": "All",
            "master": {
                "image": "example.com/master", "command": ["python"], "args": ["m.py"], "noPvcs": True,
                "environment": [{"name": "A", "exclude": True}], "compute": {"gpu": 1, "cpu": 2},
                "labels": {"role": "master"}, "annotations": {"a": "b"}, "nodeType": "small",
                "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "security": {"runAsUid": 0},
            },
        },
    },
    status={
        "phase": "Degraded", "reason": "Preempted", "message": "Waits", "observedGeneration": 3,
        "conditions": [_CONDITION, {**_CONDITION, "type": "Scheduled", "status": "False"}],
        "pods": {"desired": 4, "pending": 1, "running": 3, "ready": 2, "succeeded": 5, "failed": 6},
        "requested": {"gpu": 4, "cpu": 8, "memory": "8Gi"}, "allocated": {"gpu": 3, "cpu": 6, "memory": "6Gi"},
        "pool": "h100", "nodes": ["n1", "n2"],
        "urls": [{"url": "https://x.example.com", "name": "Jupyter", "container": 8888}],
        "refusals": [{"step": "reclaim", "code": "over-fair-share", "text": "Too much", "missing": {"gpu": 2},
                      "pool": "h100", "nodes": 7, "final": True}],
        "queuedAt": "2026-01-01T00:00:01Z",
        "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-02T00:00:00.250000Z", "runSeconds": 12.5,
        "waitSeconds": 3.25, "idleSeconds": 1.5, "staleSince": "2026-01-01T00:00:05Z", "restarts": 2,
        "interruptions": [
            {"at": "2026-01-01T10:00:00Z", "reason": "reclaimed", "by": "team-d/d-2", "lostSeconds": 90.5,
             "message": "Reclaimed", "pod": "0d5c", "final": True}
        ],
        "interruptionCount": 9, "preemptionCount": 8, "progress": 0.31, "metrics": {"loss": 0.25, "epoch": 3.0},
        "parameters": {"optimizer_name": "adam"}, "replicas": 2, "revision": "r2",
    },
)  # fmt: skip
INFERENCE = _example(
    OURS, "Workload", "serve-1",
    spec={
        "type": "inference", "image": "example.com/llm", "compute": {"gpuMemory": "4Gi", "gpuMemoryLimit": "12Gi"},
        "serving": {
            "port": {"container": 8000, "protocol": "http", "authorizationType": "public", "authorizedUsers": ["ann"],
                     "authorizedGroups": ["g"], "private": True},
            "autoscaling": {
                "minReplicas": 0, "maxReplicas": 4, "metric": "concurrency", "metricName": "queue",
                "metricThreshold": 10.5, "metricThresholdPercentage": 70, "activationReplicas": 2,
                "concurrencyHardLimit": 0, "scaleToZeroRetentionSeconds": 300, "scaleDownDelaySeconds": 60,
                "initialReplicas": 1, "autoscalerClass": "kpa",
            },
            "model": "org/model", "modelSource": "hugging-face", "modelProfile": "auto", "updateDeadline": 600,
        },
    },
)  # fmt: skip
TEMPLATE = _example(
    OURS, "Template", "big",
    spec={"values": _SETTINGS, "default": True, "types": ["training"], "description": "Big", "createdBy": "ann"},
    status={"conditions": [_CONDITION]},
)  # fmt: skip
POLICY = _example(
    OURS, "Policy", "bounds",
    spec={
        "types": ["interactive"], "department": "research", "distributed": False,
        "defaults": {"compute": {"gpu": 1}, "labels": {"a": "b"}, "args": ["-v"]},
        "rules": {
            "compute.gpu": {"required": True, "canEdit": True, "min": 0, "max": 4, "step": "0.5"},
            "compute.memory": {"max": "64Gi", "defaultFrom": {"field": "compute.cpu", "factor": 2.5}},
            "environment": {"canAdd": False, "locked": ["A"]},
            "imagePullPolicy": {"options": [{"value": "Always", "displayed": "always"}]},
        },
        "imposed": {"storage": {"pvc": [{"claimName": "logs", "path": "/logs"}]}},
        "description": "No more than four", "createdBy": "ann",
    },
    status={"phase": "Ready", "message": "in force", "observedGeneration": 1, "conditions": [_CONDITION]},
)  # fmt: skip
USER = _example(
    OURS, "User", "ann",
    spec={
        "kind": "sso", "email": "ann@example.com", "passwordHash": "scrypt$x", "changePassword": True,
        "firstName": "Ann", "lastName": "Lee", "groups": ["vision"], "uid": 1000, "gid": 100,
        "supplementalGroups": [4, 24], "owner": "bob", "disabled": True, "description": "Student",
    },
    status={"lastLogin": "2026-01-01T00:00:00Z", "conditions": [_CONDITION]},
)  # fmt: skip
ACCESS_RULE = _example(
    OURS, "AccessRule", "ann-team-a",
    spec={
        "subject": {"kind": "group", "name": "Vision People"}, "role": "l1-researcher",
        "scope": {"kind": "project", "name": "team-a"}, "createdBy": "root",
    },
    status={"conditions": [_CONDITION]},
)  # fmt: skip
TOKEN = _example(
    OURS, "Token", "laptop",
    spec={
        "user": "ann", "hash": "0f" * 32, "description": "Laptop", "expires": "2027-01-01T00:00:00Z", "createdBy": "bo",
    },
    status={"lastUsed": "2026-01-01T00:00:00Z"},
)  # fmt: skip

NAMESPACE = _example("v1", "Namespace", "vision", spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})
NODE = _example(
    "v1", "Node", "n1",
    spec={"unschedulable": True, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}], "providerID": "x://1"},
    status={
        "capacity": {"cpu": "96", "memory": "512Gi", "nvidia.com/gpu": "8"},
        "allocatable": {"cpu": "95", "memory": "500Gi", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok",
                        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "nodeInfo": {"architecture": "amd64", "bootID": "b", "machineID": "m", "systemUUID": "u", "kernelVersion": "6",
                     "osImage": "Debian", "operatingSystem": "linux", "kubeletVersion": "v1.36.4",
                     "containerRuntimeVersion": "containerd://1.6"},
    },
)  # fmt: skip
POD = _example(
    "v1", "Pod", "train-1-0",
    spec={
        "containers": [{
            "name": "main", "image": "example.com/train", "imagePullPolicy": "Always", "command": ["python"],
            "args": ["-u"], "workingDir": "/w", "stdin": True, "stdinOnce": True, "tty": True,
            "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {
                "apiVersion": "v1", "fieldPath": "metadata.name"}}}],
            "envFrom": [{"configMapRef": {"name": "c"}}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
                          "limits": {"nvidia.com/gpu": "1"}},
            "ports": [{"containerPort": 80, "name": "web"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True, "subPath": "x"}],
            "securityContext": {"runAsUser": 1000}, "livenessProbe": {"exec": {"command": ["true"]},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}},
        }],
        "initContainers": [{"name": "setup", "image": "busybox", "restartPolicy": "Always"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "nodeSelector": {"zone": "z1"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "host"}]}},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                                       "labelSelector": {"matchLabels": {"a": "b"}}}],
        "schedulerName": "aliquot", "schedulingGates": [{"name": "aliquot.dev/wait"}],
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "activeDeadlineSeconds": 600,
        "hostNetwork": False, "hostIPC": True, "hostname": "h", "subdomain": "s",
        "automountServiceAccountToken": False, "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"fsGroup": 100}, "enableServiceLinks": False, "dnsPolicy": "Default",
    },
    status={
        "phase": "Running", "reason": "R", "message": "M",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{
            "name": "main", "ready": True, "started": True, "restartCount": 1, "image": "example.com/train",
            "imageID": "sha256:0", "containerID": "containerd://0",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled", "message": "m",
                                         "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
                                         "containerID": "containerd://9"}},
        }],
        "initContainerStatuses": [{"name": "setup", "ready": False, "restartCount": 0, "image": "busybox",
                                   "imageID": "x", "state": {"waiting": {"reason": "PodInitializing"}}}],
        "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": "2026-01-01T00:00:00Z",
    },
)  # fmt: skip
SERVICE = _example(
    "v1", "Service", "train-1",
    spec={
        "type": "NodePort", "selector": {"app": "x"},
        "ports": [{"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81, "targetPort": 8081}],
    },
    status={"loadBalancer": {}},
)  # fmt: skip
CLAIM = _example(
    "v1", "PersistentVolumeClaim", "data",
    spec={
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}, "storageClassName": "fast",
        "volumeMode": "Filesystem",
    },
    status={"phase": "Bound", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"]},
)  # fmt: skip
EVENT = _example(
    "v1", "Event", "train-1.1",
    involvedObject={"apiVersion": OURS, "kind": "Workload", "name": "train-1", "namespace": "default", "uid": "u",
                    "resourceVersion": "5", "fieldPath": "spec"},
    reason="Evicted", message="Reclaimed by team-d", type="Warning", count=2, action="Evict",
    firstTimestamp="2026-01-01T00:00:00Z", lastTimestamp="2026-01-01T00:01:00Z",
    eventTime="2026-01-01T00:00:00.000001Z",
    source={"component": "scheduler", "host": "h"}, reportingComponent="aliquot.dev/scheduler", reportingInstance="s-0",
    related={"kind": "Workload", "name": "d-2", "namespace": "default"},
)  # fmt: skip
LEASE = _example(
    "coordination.k8s.io/v1", "Lease", "leader",
    spec={
        "holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:10.500000Z", "leaseTransitions": 3,
    },
)  # fmt: skip

EXAMPLES = [
    DEPARTMENT, PROJECT, NODE_POOL, SCHEDULING_POLICY, WORKLOAD, INFERENCE, TEMPLATE, POLICY, USER, ACCESS_RULE, TOKEN,
    NAMESPACE, NODE, POD, SERVICE, CLAIM, EVENT, LEASE,
]  # fmt: skip
