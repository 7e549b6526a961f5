"""Flags of `submit`: the field that each sets, and the errors of invalid values."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from aliquot.api.crds import crds
from aliquot.cli.main import runai
from aliquot.cli.runai.flags import COMMON, DISTRIBUTED, SERVING
from aliquot.cli.runai.workload_spec import flag_of
from support.cli.environment import CliEnvironment


@pytest.fixture
def team(cli: CliEnvironment) -> CliEnvironment:
    cli.create_project("team-a")
    cli.run_runai("config project team-a")
    return cli


def _submitted(team: CliEnvironment, flags: str, command: str = "submit") -> dict[str, Any]:
    result = team.invoke(*command.split(), "x", "-i", "python", *shlex.split(flags), program=runai)
    assert result.exit_code == 0, result.output
    spec: dict[str, Any] = team.get("workload", "x", "runai-team-a")["spec"]
    return {key: value for key, value in spec.items() if key not in ("user", "type", "image")}


FLAG_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("-g 0", {"compute": {"gpu": 0}}),
    ("-g .5", {"compute": {"gpu": 0.5}}),
    ("--gpu-devices-request 2 --gpu-portion-request 0.5", {"compute": {"gpu": 0.5, "gpuDevices": 2}}),
    ("--gpu-portion-request 0.2 --gpu-portion-limit 0.4", {"compute": {"gpu": 0.2, "gpuLimit": 0.4}}),
    ("--gpu-memory 4G", {"compute": {"gpuMemory": "4G"}}),
    ("-g 2 --gpu-memory 4G", {"compute": {"gpuMemory": "4G", "gpuDevices": 2}}),
    ("--gpu-memory-request 4G --gpu-memory-limit 8G", {"compute": {"gpuMemory": "4G", "gpuMemoryLimit": "8G"}}),
    ("--mig-profile 1g.5gb", {"compute": {"migProfile": "1g.5gb"}}),
    ("-g 0.5 --mps", {"compute": {"gpu": 0.5, "mps": True}}),
    ("--cpu 0.5 --cpu-limit 2", {"compute": {"cpu": 0.5, "cpuLimit": 2}}),
    ("--memory 1G --memory-limit 3Gi", {"compute": {"memory": "1G", "memoryLimit": "3Gi"}}),
    ("--extended-resource rdma/hca=1", {"compute": {"extendedResources": [{"resource": "rdma/hca", "quantity": "1"}]}}),
    ("--image-pull-policy ifnotpresent", {"imagePullPolicy": "IfNotPresent"}),
    ("--always-pull-image", {"imagePullPolicy": "Always"}),
    ("--args a,b --args=c", {"args": ["a,b", "c"]}),
    ("--command python --args x -- y", {"command": ["python"], "args": ["x", "y"]}),
    ("--command -- python x.py -v", {"command": ["python"], "args": ["x.py", "-v"]}),
    ("-- --epochs 3", {"args": ["--epochs", "3"]}),
    ("--working-dir /w --stdin -t", {"workingDir": "/w", "stdin": True, "tty": True}),
    ("--attach", {"stdin": True, "tty": True}),
    ("-e A=b=", {"environment": [{"name": "A", "value": "b="}]}),
    ("-e A=1,2", {"environment": [{"name": "A", "value": "1,2"}]}),
    ("-e A=SECRET:s,k", {"environment": [{"name": "A", "secret": {"name": "s", "key": "k"}}]}),
    ("-l a=1,b=2 -l c=3 -a d=4", {"labels": {"a": "1", "b": "2", "c": "3"}, "annotations": {"d": "4"}}),
    ("-v /a:/b:ro", {"storage": {"hostPath": [{"path": "/a", "mountPath": "/b", "readOnly": True}]}}),
    ("-v /a:/b:rw:nas", {"storage": {"nfs": [{"server": "nas", "path": "/a", "mountPath": "/b"}]}}),
    ("-v /a:/b --nfs-server nas", {"storage": {"nfs": [{"server": "nas", "path": "/a", "mountPath": "/b"}]}}),
    ("--host-path path=/a,mount=/b", {"storage": {"hostPath": [{"path": "/a", "mountPath": "/b", "readOnly": True}]}}),
    ("--nfs path=/a,server=n,mountpath=/b,readwrite", {"storage": {"nfs": [
        {"server": "n", "path": "/a", "mountPath": "/b"}]}}),
    ("--pvc ssd:10GB:/data:ro", {"storage": {"pvc": [
        {"path": "/data", "existing": False, "storageClass": "ssd", "size": "10G", "readOnly": True}]}}),
    ("--pvc :1Gi:/d", {"storage": {"pvc": [{"path": "/d", "existing": False, "size": "1Gi"}]}}),
    ("--existing-pvc claimname=c,path=/d", {"storage": {"pvc": [{"path": "/d", "claimName": "c", "existing": True}]}}),
    ("--new-pvc claimname=c,size=1Gi,path=/d,accessmode-rwm,ephemeral", {"storage": {"pvc": [
        {"path": "/d", "claimName": "c", "existing": False, "ephemeral": True, "size": "1Gi",
         "accessModes": ["ReadWriteMany"]}]}}),
    ("--git-sync source=https://g/x,branch=dev,target=/code", {"storage": {"git": [
        {"repository": "https://g/x", "path": "/code", "branch": "dev"}]}}),
    ("--s3 bucket=b,accesskey=s,target=/d", {"storage": {"s3": [{"bucket": "b", "path": "/d", "secret": "s"}]}}),
    ("--configmap-volume name=m,path=/c", {"storage": {"configMap": [{"source": "m", "path": "/c"}]}}),
    ("--mount-propagation", {"storage": {"mountPropagation": "HostToContainer"}}),
    ("-s nodeport,port=30000:7070,port=9090", {"serviceType": "nodeport", "ports": [
        {"container": 7070, "external": 30000, "serviceType": "nodeport"},
        {"container": 9090, "serviceType": "nodeport"}]}),
    ("--port 30022:22 --port 80,81", {"ports": [
        {"container": 22, "external": 30022}, {"container": 80}, {"container": 81}]}),
    ("--port service-type=NodePort,container=80,external=8080", {"ports": [
        {"container": 80, "external": 8080, "serviceType": "nodeport"}]}),
    ("--external-url container=9443,authusers=a:b", {"exposedUrls": [
        {"container": 9443, "authorizationType": "authorizedUsersOrGroups", "authorizedUsers": ["a", "b"]}]}),
    ("--custom-url http://x --address 0.0.0.0,localhost", {
        "ingressUrl": "http://x", "addresses": ["0.0.0.0", "localhost"]}),
    ("--run-as-user", {"createHomeDir": True, "security": {"runAsUser": True}}),
    ("--run-as-user --create-home-dir=false", {"createHomeDir": False, "security": {"runAsUser": True}}),
    ("--prevent-privilege-escalation", {"security": {"allowPrivilegeEscalation": False}}),
    ("--run-as-uid 5 --supplemental-groups 6,7", {"security": {"runAsUid": 5, "supplementalGroups": [6, 7]}}),
    ("--add-capability SYS_PTRACE --host-ipc", {"security": {"capabilities": ["SYS_PTRACE"], "hostIpc": True}}),
    ('--node-type dgx-2 --node-pools "a b,c"', {"nodeType": "dgx-2", "nodePools": ["a", "b", "c"]}),
    ("--toleration operator=Equal,key=k,value=v,effect=NoExecute,seconds=30", {"tolerations": [
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 30}]}),
    ("--required-pod-topology-key zone", {"topology": {"required": "zone"}}),
    ("--preemptible --backoffLimit 2", {"preemptible": True, "backoffLimit": 2}),
    ("--completions 12 --parallelism 3", {"completions": 12, "parallelism": 3}),
    ("--ttl-after-finish 2m", {"autoDeletionTimeAfterCompletionSeconds": 120}),
    ("--elastic --pod-running-timeout 1h", {"elastic": True, "podRunningTimeout": 3600}),
    ("--inference --replicas 2", {"serving": {"replicas": 2}}),
    ("--inference --serving-port 8000 --min-replicas 0 --max-replicas 3 --metric concurrency", {"serving": {
        "port": {"container": 8000}, "autoscaling": {"minReplicas": 0, "maxReplicas": 3, "metric": "concurrency"}}}),
]  # fmt: skip


@pytest.mark.parametrize("flags, spec", FLAG_FIELDS, ids=[flags for flags, _ in FLAG_FIELDS])
def test_a_flag_sets_its_field(team: CliEnvironment, flags: str, spec: dict[str, Any]) -> None:
    assert _submitted(team, flags) == spec


def test_distributed(team: CliEnvironment) -> None:
    """A distributed job whose master differs from the workers."""
    flags = "--workers 4 -g 2 --slots-per-worker 2 --master-args a --master-environment A=- --master-gpu 1"
    assert _submitted(team, flags, "submit-mpi") == {
        "compute": {"gpu": 2},
        "distributed": {
            "framework": "mpi",
            "workers": 4,
            "slotsPerWorker": 2,
            "master": {"args": ["a"], "environment": [{"name": "A", "exclude": True}], "compute": {"gpu": 1}},
        },
    }


@pytest.mark.parametrize("command, framework", [("mpi", "mpi"), ("pytorch", "pytorch"), ("tf", "tensorflow")])
def test_frameworks(team: CliEnvironment, command: str, framework: str) -> None:
    spec = _submitted(team, "--workers 2 --clean-pod-policy All", f"submit-dist {command}")
    assert spec["distributed"] == {"framework": framework, "workers": 2, "cleanPodPolicy": "All"}


INVALID = [
    ("-g 1.5", "--gpu: must be a whole number of GPUs, or a fraction of one below 1, not 1.5"),
    ("-g -1", "--gpu: must not be negative, not '-1'"),
    ("-g 0.1234", "--gpu: must have at most three decimals, not '0.1234'"),
    ("-g many", "--gpu: must be a whole number of GPUs, or a part of one such as 0.5, not 'many'"),
    ("-g 500m", "--gpu: must be a whole number of GPUs, or a part of one such as 0.5, not '500m'"),
    ("-g 0.5 --gpu-memory 4G", "--gpu: must have only one of gpu, gpuMemory and migProfile"),
    ("--gpu-memory lots", "--gpu-memory: must be an amount such as 512Mi or 4G, not 'lots'"),
    ("--mps", "--mps: needs a part of a GPU (gpu below 1) or gpuMemory"),
    ("--cpu x", "--cpu: must be a number such as 4 or 0.5, not 'x'"),
    ("--backoff-limit 1.5", "--backoff-limit: must be a whole number, not '1.5'"),
    ("--completions 1 --parallelism 2", "--parallelism: must not be more than completions"),
    ("--image-pull-policy often", "--image-pull-policy: must be one of Always, IfNotPresent, Never, not often"),
    ("--ttl-after-finish soon", "--auto-deletion-time-after-completion: must be a duration"),
    ("-e A", "--environment: must be NAME=VALUE, not 'A'"),
    ("-e A=1 -e A=2", "--environment: has A twice"),
    ("-l a", "--label: must be KEY=VALUE, not 'a'"),
    ("-v /a", "--volume: must be SRC:DST"),
    ("-v a:/b", "--volume: must match"),
    ("--pvc x", "--pvc: must be NAME:PATH[:ro]"),
    ("--new-pvc size=1Gi", "--new-pvc: path is missing"),
    ("--git-sync source=x,password=y", "--git-sync: passwords are not kept in workloads"),
    ("--s3 bucket=b,key=k,target=/t", "--s3: keys are not kept in workloads"),
    ("--s3 colour=red", "--s3: unknown key 'colour'"),
    ("--port 99999", "--port: must be a port from 1 to 65535"),
    ("-s telepathy", "--service-type: must be one of"),
    ("--interactive=maybe", "--interactive: must be true or false, not 'maybe'"),
    ("--inference --interactive", "--inference and --interactive: give one of them"),
    ("--command", "--command: give the program"),
    ("--gpu-request-type magic", "--gpu-request-type: must be one of"),
    ("--replicas 2", "--replicas: needs --inference"),
]


@pytest.mark.parametrize("flags, error", INVALID, ids=[flags for flags, _ in INVALID])
def test_a_wrong_value_is_one_line(team: CliEnvironment, flags: str, error: str) -> None:
    """The error is one line with the flag, and nothing is created."""
    result = team.invoke("submit", "x", "-i", "python", *shlex.split(flags), program=runai)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {error}")
    assert len(result.stderr.splitlines()) == 1
    assert team.run_runai("list -o name") == ""


def _fields(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for step in path:
        schema = schema["properties"][step]
    return schema


def test_every_flag_sets_an_existing_field() -> None:
    """Each path is in the schema, and errors there name a flag."""
    crd = next(each for each in crds() if each["spec"]["names"]["kind"] == "Workload")
    spec = _fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], ["spec"])
    for flag in (*COMMON, *SERVING, *DISTRIBUTED):
        if flag.spec_path:
            assert _fields(spec, flag.spec_path.split("."))
            assert flag_of(flag.spec_path)


def test_all_documented_flags_exist(cli: CliEnvironment) -> None:
    """All flags of the classic and of the newer command line exist."""
    known = set(re.findall(r"--[a-zA-Z0-9-]+", " ".join(flag.names for flag in (*COMMON, *SERVING, *DISTRIBUTED))))
    documented = """--name --job-name-prefix --image --gpu --gpu-memory --mig-profile --mps --interactive --preemptible
        --inference --replicas --jupyter --elastic --command --args --attach --stdin --tty --working-dir --environment
        --annotation --label --add-capability --local-image --always-pull-image --image-pull-policy --create-home-dir
        --cpu --cpu-limit --memory --memory-limit --extended-resource --large-shm --volume --nfs-server --pvc
        --pvc-exists --existing-pvc --new-pvc --pvc-new --git-sync --s3 --configmap-volume --mount-propagation
        --service-type --port --custom-url --address --host-ipc --host-network --run-as-user
        --prevent-privilege-escalation --allow-privilege-escalation --node-type --node-pools --toleration
        --preferred-pod-topology-key --required-pod-topology-key --backoff-limit --backoffLimit --completions
        --parallelism --ttl-after-finish --auto-deletion-time-after-completion --template --dry-run --processes
        --workers --slots-per-worker --master-args --master-environment --master-extended-resource --master-gpu
        --master-no-pvcs --clean-pod-policy --min-replicas --max-replicas --no-master --name-prefix --prefix-name
        --gpu-devices-request --gpu-portion-request --gpu-portion-limit --gpu-memory-request --gpu-memory-limit
        --gpu-request-type --cpu-core-request --cpu-core-limit --cpu-memory-request --cpu-memory-limit --capability
        --external-url --host-path --nfs --configmap-map-volume --run-as-uid --run-as-gid --supplemental-groups
        --user-group-source --seccomp-profile --pod-running-timeout --wait-for-submit --runs --master-command
        --master-gpu-devices-request --master-gpu-portion-request --master-gpu-portion-limit --serving-port --metric
        --metric-threshold --activation-replicas --concurrency-hard-limit --node-pool-name"""
    assert set(documented.split()) - known == set()
