"""Every label, annotation, resource and namespace name that we read or write, in one place.

Ours start with `aliquot.dev/` and are the only ones we write for our own use. Names of other systems are read
as aliases for ever; the few we also write are what users of those systems rely on (marked `written`).
"""

from __future__ import annotations

from collections.abc import Mapping

GROUP = "aliquot.dev"
API_VERSION = f"{GROUP}/v1"

# --- namespaces
SYSTEM_NAMESPACE = "runai"  # templates, policies and secrets that hold for every project
RESERVATION_NAMESPACE = "runai-reservation"
PROJECT_NAMESPACE_PREFIX = "runai-"
PROJECT = "aliquot.dev/project"  # on a namespace: whose it is
QUEUE_ALIASES = ("runai/queue", "kai.scheduler/queue")  # the same, as other systems spell it

# --- objects that are always there
DEFAULT_DEPARTMENT = "default"  # of every project that names no other

# --- on nodes
NODE_POOL = "aliquot.dev/node-pool"
NODE_TYPE = "run.ai/type"  # written: what administrators type (`kubectl label node ... run.ai/type=dgx-2`)
DEVICES = "aliquot.dev/devices"  # annotation. node: its GPUs; pod: the GPUs it was given (JSON, see types.machine)
GPU_WORKER = "node-role.kubernetes.io/runai-gpu-worker"  # once any node has one of the two, unmarked nodes are unused
CPU_WORKER = "node-role.kubernetes.io/runai-cpu-worker"
EVICTED = "aliquot.dev/evicted"  # annotation on a pod: it is to be stopped, by whom and why (JSON, see control.notices)
PROMISED = "aliquot.dev/promised"  # annotation on a pod: the place it gets as soon as it is free (JSON, the same)
SAVED = "aliquot.dev/saved"  # condition of a pod, with the time of the last checkpoint that its job reported
SIMULATED = "aliquot.dev/simulated"  # "true" on nodes whose GPUs do not exist

# --- on our custom resource definitions
INSTALLED_BY = "aliquot.dev/version"  # annotation: the version of Aliquot that wrote it

# --- of kubectl: the whole object as it was last applied, secrets included
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

GPU_BUSY = "aliquot.dev/gpu-busy"  # annotation: percent of its time that each GPU computed just now, such as "83,0"

# --- on workloads
CREATED_BY = "aliquot.dev/created-by"  # annotation: "cli" when the command line made it
FILLED_BY = "aliquot.dev/filled-by"  # annotation: the template and policies that filled it in, and which fields
TRANSLATED = "aliquot.dev/translated"  # annotation: the spec as it followed from the Run:ai object that it belongs to

# --- on events
WORKLOAD_UID = "aliquot.dev/workload-uid"  # of the workload it is about, also where it names one of its pods

# --- on pods
WORKLOAD = "aliquot.dev/workload"
POD_INDEX = "aliquot.dev/pod-index"
MIN_AVAILABLE = "aliquot.dev/min-available"  # annotation: so many pods of its workload start together, or none
PRIORITY_CLASS = "priorityClassName"  # label: the name of its priority class, where its spec cannot say it
NODE_POOL_ALIASES = ("kai.scheduler/node-pool",)  # label: the node pool it wants
POD_GROUP = "pod-group-name"  # annotation of KAI: the pod group it belongs to
KNATIVE_REVISION = "serving.knative.dev/revision"  # what Knative, Kubeflow's notebooks and Deployments mark theirs by
NOTEBOOK = "notebook-name"
POD_TEMPLATE_HASH = "pod-template-hash"

# --- on namespaces
ENFORCE_SCHEDULER = "runai/enforce-scheduler-name"  # annotation, "true": all new pods there are placed by us

# --- on pods: a part of a GPU (whole ones are the resource below)
GPU_FRACTION = "aliquot.dev/gpu-fraction"  # of each device, such as "0.5"
GPU_MEMORY_MIB = "aliquot.dev/gpu-memory"  # on each device, in MiB
GPU_DEVICES = "aliquot.dev/gpu-devices"  # on how many devices of one node; 1 unless given
GPU_FRACTION_LIMIT = "aliquot.dev/gpu-fraction-limit"  # of each device, how far it may grow while others leave it idle
GPU_MEMORY_LIMIT_MIB = "aliquot.dev/gpu-memory-limit"  # the same, in MiB
GPU_COMPUTE_MODE = "aliquot.dev/gpu-compute"  # timesharing, fair, strict or mps; the node's own way unless given
GPU_FRACTION_ALIASES = ("gpu-fraction",)
GPU_MEMORY_ALIASES = ("gpu-memory",)
GPU_DEVICES_ALIASES = ("gpu-fraction-num-devices",)

# --- on Kubernetes: how a part of a GPU is held and handed over (see kube/)
RESERVATION = "aliquot.dev/reservation"  # label, "true": the pod holds a whole GPU for those that have parts of it
CLAIMS = "aliquot.dev/claims"  # annotation on such a pod: who has a part of its GPU, or is about to (JSON)
CLAIM_BROKEN = "aliquot.dev/claim-broken"  # annotation on a waiting pod: when it was last told that its claim is over
GPU_CONFIG = "aliquot.dev/gpu-config"  # annotation on a pod: the ConfigMap that says which GPU it has, and how much
ENFORCED = (
    "aliquot.dev/enforce-scheduler"  # label on a namespace where ENFORCE_SCHEDULER holds: webhooks select by labels
)

# --- extended resources
GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"

# --- what GPU feature discovery writes on nodes
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_COUNT = "nvidia.com/gpu.count"
GPU_MEMORY = "nvidia.com/gpu.memory"

SCHEDULER_NAMES = ("aliquot", "runai-scheduler")


def namespace_of(project: str) -> str:
    """The namespace a project gets unless its spec names another one."""
    return PROJECT_NAMESPACE_PREFIX + project


def project_of(labels: Mapping[str, str]) -> str:
    """The project a namespace belongs to, by its labels; empty when to none."""
    return next((labels[key] for key in (PROJECT, *QUEUE_ALIASES) if labels.get(key)), "")
