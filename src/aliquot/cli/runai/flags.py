"""Every flag of `submit` and its sisters, classic and newer, as a table.

A flag says where its value lands in the workload's spec. Those that land nowhere are taken apart in spec.py, because
their value has a grammar of its own or touches several fields. Nothing is imported but click.

What the embedded platform does not act on yet (claims, buckets, node pools, distributed training, ...) is stored
all the same, so that the same command line works where it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import click

from aliquot.cli.runai.argument_scan import ENTRYPOINT_FOLLOWS

# text: one value, the last wins. switch: true or false. list: repeated, or with commas. many: repeated only.
Form = Literal["text", "switch", "list", "many"]


class Flag(NamedTuple):
    names: str  # "--image -i": the first is the one that messages use
    form: Form
    spec_path: str = ""  # "compute.cpu", in the spec's JSON
    help: str = ""
    metavar: str = "VALUE"
    hidden: bool = False

    @property
    def name(self) -> str:
        """Without dashes."""
        return self.names.split()[0].lstrip("-")

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


def _text(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE", hidden: bool = False) -> Flag:
    return Flag(names, "text", spec_path, help, metavar, hidden)


def _switch(names: str, spec_path: str = "", help: str = "", hidden: bool = False) -> Flag:
    return Flag(names, "switch", spec_path, help, hidden=hidden)


def _list(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE,...") -> Flag:
    return Flag(names, "list", spec_path, help, metavar)


def _many(names: str, spec_path: str = "", help: str = "", metavar: str = "VALUE") -> Flag:
    return Flag(names, "many", spec_path, help, metavar)


_WHAT = (
    _text("--name", help="Name of the job; also the first word.", metavar="NAME"),
    _text("--job-name-prefix", help="Make a name: PREFIX-0, PREFIX-1, ...", metavar="PREFIX"),
    _text("--name-prefix --prefix-name", help="Make a name: PREFIX and a few random letters.", metavar="PREFIX"),
    _text("--template", help="Take what is not given from this template.", metavar="NAME"),
    _text("--image -i", "image", "Container image.", "IMAGE"),
    _text("--image-pull-policy", help="Always, IfNotPresent or Never; Always.", metavar="POLICY"),
    _switch("--local-image", help="The image is on the nodes: pull policy Never.", hidden=True),
    _switch("--always-pull-image", help="Pull policy Always.", hidden=True),
    _switch("--interactive", help="An interactive job: no end, within quota, not preempted."),
    _switch("--inference", help="An inference service."),
    _text("--replicas", "serving.replicas", "Replicas of an inference service.", "N"),
    _switch("--jupyter", help="A Jupyter notebook: interactive, with image and settings."),
    _switch("--elastic", "elastic", "May start with fewer GPUs and get more later."),
    _text("--command -c", help="Program to run, with --args; alone: the program is after `--`.", metavar="[PROGRAM]"),
    Flag(ENTRYPOINT_FOLLOWS, "switch", hidden=True),
    _many("--args", help="An argument of the program; repeat it.", metavar="ARG"),
    _text("--working-dir", "workingDir", "Folder the program starts in.", "DIR"),
    _many("--environment -e", help="A variable: NAME=VALUE, or NAME=SECRET:secret,key.", metavar="NAME=VALUE"),
    _list("--label -l", help="A label of its pods.", metavar="KEY=VALUE"),
    _list("--annotation -a", help="An annotation of its pods.", metavar="KEY=VALUE"),
    _switch("--stdin", "stdin", "Keep standard input open."),
    _switch("--tty -t", "tty", "Give it a terminal."),
    _switch("--attach", help="The same as --tty --stdin; follow it with `runai logs -f`."),
    _switch("--create-home-dir", "createHomeDir", "Give it a temporary home folder."),
    _switch("--dry-run", help="Print the workload as YAML; create nothing."),
)  # fmt: skip
_COMPUTE = (
    _text("--gpu -g --gpu-devices-request", help="GPUs: whole, or a part below 1.", metavar="N"),
    _text("--gpu-portion-request", help="The part of each GPU.", metavar="PART"),
    _text("--gpu-portion-limit", "compute.gpuLimit", "The part it may grow to.", "PART"),
    _text("--gpu-memory --gpu-memory-request", "compute.gpuMemory", "GPU memory instead of a part.", "AMOUNT"),
    _text("--gpu-memory-limit", "compute.gpuMemoryLimit", "GPU memory it may grow to.", "AMOUNT"),
    _text("--gpu-request-type", help="portion, memory or migProfile; follows from the rest.", metavar="TYPE"),
    _text("--mig-profile", "compute.migProfile", "A MIG slice such as 1g.5gb.", "PROFILE", hidden=True),
    _switch("--mps", "compute.mps", "Run parts of a GPU under NVIDIA MPS."),
    _text("--cpu --cpu-core-request", "compute.cpu", "CPU cores guaranteed; one per GPU.", "N"),
    _text("--cpu-limit --cpu-core-limit", "compute.cpuLimit", "Most CPU cores.", "N"),
    _text("--memory --cpu-memory-request", "compute.memory", "CPU memory guaranteed; 100Mi per GPU.", "AMOUNT"),
    _text("--memory-limit --cpu-memory-limit", "compute.memoryLimit", "Most CPU memory.", "AMOUNT"),
    _switch("--large-shm", "compute.largeShm", "A large /dev/shm."),
    _list("--extended-resource", help="A further resource.", metavar="NAME=AMOUNT"),
)
_STORAGE = (
    _list("--volume -v", help="A folder of the node, or of an NFS server.", metavar="SRC:DST[:ro][:HOST]"),
    _text("--nfs-server", help="NFS server of every --volume.", metavar="HOST"),
    _many("--host-path", help="path=,mount=,mount-propagation=,readwrite", metavar="KEY=VALUE,..."),
    _many("--nfs", help="path=,server=,mountpath=,readwrite", metavar="KEY=VALUE,..."),
    _many("--pvc", help="A claim: NAME:PATH[:ro], or a new one: [CLASS]:SIZE:PATH[:ro].", metavar="CLAIM"),
    _many("--existing-pvc --pvc-exists", help="claimname=,path=", metavar="KEY=VALUE,..."),
    _many("--new-pvc --pvc-new", help="claimname=,storageclass=,size=,path=,accessmode-rwo,ro,ephemeral",
          metavar="KEY=VALUE,..."),
    _many("--git-sync", help="source=,branch=,rev=,username=,secret=,target=", metavar="KEY=VALUE,..."),
    _many("--s3", help="bucket=,accesskey=SECRET,url=,target=", metavar="KEY=VALUE,..."),
    _many("--configmap-volume --configmap-map-volume", help="name=,path=,subpath=", metavar="KEY=VALUE,..."),
    _switch("--mount-propagation", help="Later mounts of the node show up in all its folders."),
)  # fmt: skip
_NETWORK = (
    _many("--service-type -s", help="ingress, portforward, loadbalancer, nodeport or external-url.", metavar="TYPE"),
    _many("--port", help="A port: 8888, or HOST:CONTAINER.", metavar="PORT"),
    _text("--custom-url", "ingressUrl", "URL for service type external-url.", "URL"),
    _many("--external-url", help="container=,url=,authusers=,authgroups=", metavar="KEY=VALUE,..."),
    _list("--address", "addresses", "Where service type portforward listens.", "ADDRESS,..."),
)
_SECURITY = (
    _switch("--run-as-user", "security.runAsUser", "Run as you instead of the image's user."),
    _text("--run-as-uid", "security.runAsUid", "User id.", "N"),
    _text("--run-as-gid", "security.runAsGid", "Group id.", "N"),
    _list("--supplemental-groups", "security.supplementalGroups", "Further group ids.", "N,..."),
    _text("--user-group-source", "security.uidGidSource", "fromTheImage, fromIdpToken or custom.", "SOURCE"),
    _text("--seccomp-profile", "security.seccompProfileType", "RuntimeDefault, Unconfined or Localhost.", "PROFILE"),
    _list("--add-capability --capability", "security.capabilities", "Linux capabilities to add.", "NAME,..."),
    _switch("--prevent-privilege-escalation", help="No process gets more rights than its parent."),
    _switch("--allow-privilege-escalation", "security.allowPrivilegeEscalation", "A process may get more rights."),
    _switch("--host-ipc", "security.hostIpc", "Share the node's inter-process communication."),
    _switch("--host-network", "security.hostNetwork", "Share the node's network."),
)
_PLACE = (
    _text("--node-type", "nodeType", "Node group.", "TYPE"),
    _list("--node-pools --node-pool-name", help="Node pools to try, in this order.", metavar="POOL,..."),
    _many("--toleration", help="operator=Exists,key=,value=,effect=,seconds=", metavar="KEY=VALUE,..."),
    _text("--preferred-pod-topology-key", "topology.preferred", "Pods near each other, if possible.", "LABEL"),
    _text("--required-pod-topology-key", "topology.required", "Pods near each other, or not at all.", "LABEL"),
)
_LIFE = (
    _switch("--preemptible", "preemptible", "An interactive job may exceed quota and be stopped for others."),
    _text("--backoff-limit --backoffLimit", "backoffLimit", "Retries of a training job; 6.", "N"),
    _text("--completions --runs", "completions", "Pods that must succeed.", "N"),
    _text("--parallelism", "parallelism", "Pods that run at once.", "N"),
    _text("--auto-deletion-time-after-completion --ttl-after-finish", "autoDeletionTimeAfterCompletionSeconds",
          "Delete it this long after it has finished.", "TIME"),
    _text("--pod-running-timeout", "podRunningTimeout", "Fail when its pods have not started by then.", "TIME"),
    _text("--wait-for-submit", help="Accepted; submitting waits for nothing.", metavar="TIME", hidden=True),
)  # fmt: skip
SERVING = (
    _text("--serving-port", help="8000, or container=,protocol=,authorization-type=,authorized-users=a:b",
          metavar="PORT"),
    _text("--min-replicas", "serving.autoscaling.minReplicas", "Fewest replicas.", "N"),
    _text("--max-replicas", "serving.autoscaling.maxReplicas", "Most replicas.", "N"),
    _text("--metric", "serving.autoscaling.metric", "concurrency, throughput or latency.", "METRIC"),
    _text("--metric-threshold", "serving.autoscaling.metricThreshold", "More replicas above this.", "N"),
    _text("--activation-replicas", "serving.autoscaling.activationReplicas", "Replicas after sleep.", "N"),
    _text("--concurrency-hard-limit", "serving.autoscaling.concurrencyHardLimit", "Requests at once.", "N"),
)  # fmt: skip
DISTRIBUTED = (
    _text("--workers --processes", "distributed.workers", "Workers.", "N"),
    _text("--slots-per-worker", "distributed.slotsPerWorker", "Processes per worker (MPI).", "N"),
    _text("--min-replicas", "distributed.minReplicas", "Fewest workers (PyTorch).", "N"),
    _text("--max-replicas", "distributed.maxReplicas", "Most workers (PyTorch).", "N"),
    _switch("--no-master", "distributed.noMaster", "No pod besides the workers (PyTorch, TensorFlow)."),
    _text("--clean-pod-policy", "distributed.cleanPodPolicy", "Running, All or None; Running.", "POLICY"),
    _text("--master-command", help="Program of the master.", metavar="PROGRAM"),
    _many("--master-args", help="An argument of the master.", metavar="ARG"),
    _many("--master-environment", help="A variable of the master; NAME=- removes one.", metavar="NAME=VALUE"),
    _list("--master-extended-resource", help="A further resource of the master.", metavar="NAME=AMOUNT"),
    _text("--master-gpu --master-gpu-devices-request --master-gpu-portion-request",
          help="GPUs of the master.", metavar="N"),
    _text("--master-gpu-portion-limit", "distributed.master.compute.gpuLimit", "The part it may grow to.", "PART"),
    _switch("--master-no-pvcs", "distributed.master.noPvcs", "The master goes without the claims."),
)  # fmt: skip
COMMON = (*_WHAT, *_COMPUTE, *_STORAGE, *_NETWORK, *_SECURITY, *_PLACE, *_LIFE)


def with_flags(flags: Iterable[Flag]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags; each arrives under its key."""
    chosen = list(flags)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for flag in reversed(chosen):
            command = _option(flag)(command)
        return command

    return decorate


def _option(flag: Flag) -> Callable[[Any], Any]:
    names = (*flag.names.split(), flag.key)
    if flag.form == "switch":
        return click.option(*names, is_flag=True, default=None, help=flag.help, hidden=flag.hidden)
    more = {"multiple": True} if flag.form in ("list", "many") else {}
    return click.option(*names, metavar=flag.metavar, help=flag.help, hidden=flag.hidden, **more)  # type: ignore[arg-type]  # click's own types are looser
