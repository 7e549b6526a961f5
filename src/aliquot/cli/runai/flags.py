"""The flags of `submit`, `submit-mpi` and `submit-dist`, classic and newer, as a table.

Most flags set the field of the workload's spec that `spec_path` names. workload_spec.py handles the others: their value
has a syntax of its own, or sets several fields. This module imports only click.

Fields that the local backend does not use yet (claims, buckets, node pools, distributed training, ...) are stored all
the same, so that the same command line works on a backend that uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import click

from aliquot.cli.runai.argument_scan import ENTRYPOINT_FOLLOWS

# text: one value, the last wins. switch: true or false. list: repeated, or with commas. many: repeated only.
ValueType = Literal["text", "switch", "list", "many"]


class Flag(NamedTuple):
    names: str  # "--image -i"; messages use the first
    value_type: ValueType
    spec_path: str = ""  # "compute.cpu": path of the field in the spec; "" when workload_spec.py handles the flag
    help: str = ""
    metavar: str = "VALUE"
    hidden: bool = False

    @property
    def name(self) -> str:
        """The first name without dashes."""
        return self.names.split()[0].lstrip("-")

    @property
    def key(self) -> str:
        """The name of the parameter that click passes to the command."""
        return self.name.replace("-", "_")


def _text(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE", hidden: bool = False) -> Flag:
    return Flag(names, "text", spec_path, help, metavar, hidden)


def _switch(names: str, spec_path: str = "", help: str = "", hidden: bool = False) -> Flag:
    return Flag(names, "switch", spec_path, help, hidden=hidden)


def _list(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE,...") -> Flag:
    return Flag(names, "list", spec_path, help, metavar)


def _many(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE") -> Flag:
    return Flag(names, "many", spec_path, help, metavar)


_JOB = (
    _text("--name", help="Name of the job; the same as the argument NAME.", metavar="NAME"),
    _text("--job-name-prefix", help="Generate a name: PREFIX-0, PREFIX-1, ...", metavar="PREFIX"),
    _text("--name-prefix --prefix-name", help="Generate a name: PREFIX and random letters.", metavar="PREFIX"),
    _text("--template", help="Template for the values that are not given.", metavar="NAME"),
    _text("--image -i", "image", "Container image.", "IMAGE"),
    _text("--image-pull-policy", help="Always, IfNotPresent or Never; Always.", metavar="POLICY"),
    _switch("--local-image", help="Use an image of the node: pull policy Never.", hidden=True),
    _switch("--always-pull-image", help="Pull policy Always.", hidden=True),
    _switch("--interactive", help="Interactive job: has no end, runs within the quota and is not preempted."),
    _switch("--inference", help="Inference service."),
    _text("--replicas", "serving.replicas", "Number of replicas of an inference service.", "N"),
    _switch("--jupyter", help="Jupyter notebook: an interactive job with a ready image and settings."),
    _switch("--elastic", "elastic", "The job may start with fewer GPUs and get more later."),
    _text("--command -c", help="Program to run, with --args; without a value the program follows after `--`.",
          metavar="[PROGRAM]"),
    Flag(ENTRYPOINT_FOLLOWS, "switch", hidden=True),
    _many("--args", help="Argument of the program; repeatable.", metavar="ARG"),
    _text("--working-dir", "workingDir", "Working directory of the program.", "DIR"),
    _many("--environment -e", help="Environment variable: NAME=VALUE, or NAME=SECRET:secret,key.",
          metavar="NAME=VALUE"),
    _list("--label -l", help="Label of the pods.", metavar="KEY=VALUE"),
    _list("--annotation -a", help="Annotation of the pods.", metavar="KEY=VALUE"),
    _switch("--stdin", "stdin", "Keep standard input open."),
    _switch("--tty -t", "tty", "Allocate a terminal."),
    _switch("--attach", help="The same as --tty --stdin; `runai logs -f` follows the output."),
    _switch("--create-home-dir", "createHomeDir", "Create a temporary home folder."),
    _switch("--dry-run", help="Print the workload as YAML and create nothing."),
)  # fmt: skip
_COMPUTE = (
    _text("--gpu -g --gpu-devices-request", help="Number of GPUs: a whole number, or a fraction below 1.", metavar="N"),
    _text("--gpu-portion-request", help="Fraction of each GPU.", metavar="PART"),
    _text("--gpu-portion-limit", "compute.gpuLimit", "Largest fraction that it may use.", "PART"),
    _text("--gpu-memory --gpu-memory-request", "compute.gpuMemory", "GPU memory, instead of a fraction.", "AMOUNT"),
    _text("--gpu-memory-limit", "compute.gpuMemoryLimit", "Largest GPU memory that it may use.", "AMOUNT"),
    _text(
        "--gpu-request-type",
        help="portion, memory or migProfile; by default it follows from the other flags.",
        metavar="TYPE",
    ),
    _text("--mig-profile", "compute.migProfile", "MIG profile such as 1g.5gb.", "PROFILE", hidden=True),
    _switch("--mps", "compute.mps", "Share the GPU through NVIDIA MPS."),
    _text("--cpu --cpu-core-request", "compute.cpu", "Guaranteed CPU cores; one per GPU.", "N"),
    _text("--cpu-limit --cpu-core-limit", "compute.cpuLimit", "Limit of CPU cores.", "N"),
    _text("--memory --cpu-memory-request", "compute.memory", "Guaranteed CPU memory; 100Mi per GPU.", "AMOUNT"),
    _text("--memory-limit --cpu-memory-limit", "compute.memoryLimit", "Limit of CPU memory.", "AMOUNT"),
    _switch("--large-shm", "compute.largeShm", "Mount a large /dev/shm."),
    _list("--extended-resource", help="Extended resource.", metavar="NAME=AMOUNT"),
)
_STORAGE = (
    _list("--volume -v", help="Folder of the node or of an NFS server to mount.", metavar="SRC:DST[:ro][:HOST]"),
    _text("--nfs-server", help="NFS server of every --volume.", metavar="HOST"),
    _many("--host-path", help="path=,mount=,mount-propagation=,readwrite", metavar="KEY=VALUE,..."),
    _many("--nfs", help="path=,server=,mountpath=,readwrite", metavar="KEY=VALUE,..."),
    _many("--pvc", help="Volume claim: NAME:PATH[:ro], or a new one: [CLASS]:SIZE:PATH[:ro].", metavar="CLAIM"),
    _many("--existing-pvc --pvc-exists", help="claimname=,path=", metavar="KEY=VALUE,..."),
    _many("--new-pvc --pvc-new", help="claimname=,storageclass=,size=,path=,accessmode-rwo,ro,ephemeral",
          metavar="KEY=VALUE,..."),
    _many("--git-sync", help="source=,branch=,rev=,username=,secret=,target=", metavar="KEY=VALUE,..."),
    _many("--s3", help="bucket=,accesskey=SECRET,url=,target=", metavar="KEY=VALUE,..."),
    _many("--configmap-volume --configmap-map-volume", help="name=,path=,subpath=", metavar="KEY=VALUE,..."),
    _switch("--mount-propagation", help="Make later mounts of the node visible in the mounted folders."),
)  # fmt: skip
_NETWORK = (
    _many("--service-type -s", help="ingress, portforward, loadbalancer, nodeport or external-url.", metavar="TYPE"),
    _many("--port", help="Port: 8888, or HOST:CONTAINER.", metavar="PORT"),
    _text("--custom-url", "ingressUrl", "URL for service type external-url.", "URL"),
    _many("--external-url", help="container=,url=,authusers=,authgroups=", metavar="KEY=VALUE,..."),
    _list("--address", "addresses", "Addresses that service type portforward listens on.", "ADDRESS,..."),
)
_SECURITY = (
    _switch("--run-as-user", "security.runAsUser", "Run as your user instead of the image's."),
    _text("--run-as-uid", "security.runAsUid", "User id.", "N"),
    _text("--run-as-gid", "security.runAsGid", "Group id.", "N"),
    _list("--supplemental-groups", "security.supplementalGroups", "Supplemental group ids.", "N,..."),
    _text("--user-group-source", "security.uidGidSource", "fromTheImage, fromIdpToken or custom.", "SOURCE"),
    _text("--seccomp-profile", "security.seccompProfileType", "RuntimeDefault, Unconfined or Localhost.", "PROFILE"),
    _list("--add-capability --capability", "security.capabilities", "Linux capabilities to add.", "NAME,..."),
    _switch("--prevent-privilege-escalation", help="No process may get more privileges than its parent."),
    _switch(
        "--allow-privilege-escalation",
        "security.allowPrivilegeEscalation",
        "A process may get more privileges than its parent.",
    ),
    _switch("--host-ipc", "security.hostIpc", "Use the IPC namespace of the node."),
    _switch("--host-network", "security.hostNetwork", "Use the network of the node."),
)
_NODE_SELECTION = (
    _text("--node-type", "nodeType", "Node type.", "TYPE"),
    _list("--node-pools --node-pool-name", help="Node pools, in the order of preference.", metavar="POOL,..."),
    _many("--toleration", help="operator=Exists,key=,value=,effect=,seconds=", metavar="KEY=VALUE,..."),
    _text(
        "--preferred-pod-topology-key",
        "topology.preferred",
        "Topology label whose value the pods share, if possible.",
        "LABEL",
    ),
    _text(
        "--required-pod-topology-key", "topology.required", "Topology label whose value the pods must share.", "LABEL"
    ),
)
_LIFECYCLE = (
    _switch("--preemptible", "preemptible", "The interactive job may exceed the quota, and may be preempted."),
    _text("--backoff-limit --backoffLimit", "backoffLimit", "Number of retries of a training job; 6.", "N"),
    _text("--completions --runs", "completions", "Number of pods that must succeed.", "N"),
    _text("--parallelism", "parallelism", "Number of pods that run at the same time.", "N"),
    _text("--auto-deletion-time-after-completion --ttl-after-finish", "autoDeletionTimeAfterCompletionSeconds",
          "Delete the job this long after it has finished.", "TIME"),
    _text("--pod-running-timeout", "podRunningTimeout", "Fail if the pods have not started after this time.", "TIME"),
    _text("--wait-for-submit", help="Accepted and ignored: submission does not wait.", metavar="TIME", hidden=True),
)  # fmt: skip
SERVING = (
    _text("--serving-port", help="8000, or container=,protocol=,authorization-type=,authorized-users=a:b",
          metavar="PORT"),
    _text("--min-replicas", "serving.autoscaling.minReplicas", "Minimum number of replicas.", "N"),
    _text("--max-replicas", "serving.autoscaling.maxReplicas", "Maximum number of replicas.", "N"),
    _text("--metric", "serving.autoscaling.metric", "concurrency, throughput or latency.", "METRIC"),
    _text("--metric-threshold", "serving.autoscaling.metricThreshold", "Add replicas above this value.", "N"),
    _text("--activation-replicas", "serving.autoscaling.activationReplicas", "Replicas when scaling from zero.", "N"),
    _text("--concurrency-hard-limit", "serving.autoscaling.concurrencyHardLimit",
          "Maximum number of concurrent requests per replica.", "N"),
)  # fmt: skip
DISTRIBUTED = (
    _text("--workers --processes", "distributed.workers", "Number of workers.", "N"),
    _text("--slots-per-worker", "distributed.slotsPerWorker", "Number of processes per worker (MPI).", "N"),
    _text("--min-replicas", "distributed.minReplicas", "Minimum number of workers (PyTorch).", "N"),
    _text("--max-replicas", "distributed.maxReplicas", "Maximum number of workers (PyTorch).", "N"),
    _switch("--no-master", "distributed.noMaster", "Run without a master pod (PyTorch, TensorFlow)."),
    _text("--clean-pod-policy", "distributed.cleanPodPolicy", "Running, All or None; Running.", "POLICY"),
    _text("--master-command", help="Program of the master.", metavar="PROGRAM"),
    _many("--master-args", help="Argument of the master's program; repeatable.", metavar="ARG"),
    _many("--master-environment", help="Environment variable of the master; NAME=- removes one.", metavar="NAME=VALUE"),
    _list("--master-extended-resource", help="Extended resource of the master.", metavar="NAME=AMOUNT"),
    _text("--master-gpu --master-gpu-devices-request --master-gpu-portion-request",
          help="Number of GPUs of the master.", metavar="N"),
    _text("--master-gpu-portion-limit", "distributed.master.compute.gpuLimit", "Largest fraction of it.", "PART"),
    _switch("--master-no-pvcs", "distributed.master.noPvcs", "The master does not mount the volume claims."),
)  # fmt: skip
COMMON = (*_JOB, *_COMPUTE, *_STORAGE, *_NETWORK, *_SECURITY, *_NODE_SELECTION, *_LIFECYCLE)


def with_flags(flags: Iterable[Flag]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags to a command, which gets each under its key."""
    definitions = list(flags)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for flag in reversed(definitions):
            command = _option(flag)(command)
        return command

    return decorate


def _option(flag: Flag) -> Callable[[Any], Any]:
    names = (*flag.names.split(), flag.key)
    if flag.value_type == "switch":
        return click.option(*names, is_flag=True, default=None, help=flag.help, hidden=flag.hidden)
    more = {"multiple": True} if flag.value_type in ("list", "many") else {}
    return click.option(*names, metavar=flag.metavar, help=flag.help, hidden=flag.hidden, **more)  # type: ignore[arg-type]  # click's own types are looser
