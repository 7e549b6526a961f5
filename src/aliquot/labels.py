"""Every label, annotation, resource and namespace name that we read or write.

Our own names start with `aliquot.dev/`. Names of other systems are read as aliases. A comment says `written` on the
few that we also write because users of those systems rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping

API_GROUP = "aliquot.dev"
API_VERSION = f"{API_GROUP}/v1"

# --- namespaces
SYSTEM_NAMESPACE = "runai"  # templates, policies and secrets that apply to every project
RESERVATION_NAMESPACE = "runai-reservation"
PLATFORM_NAMESPACES = (SYSTEM_NAMESPACE, RESERVATION_NAMESPACE)  # no project may have them
# Pods there hold devices on behalf of the pods that share them; those are counted instead.
PLACEHOLDER_NAMESPACES = (RESERVATION_NAMESPACE,)
PROJECT_NAMESPACE_PREFIX = "runai-"
PROJECT = "aliquot.dev/project"  # on a namespace: the project it belongs to
QUEUE_ALIASES = ("runai/queue", "kai.scheduler/queue")  # the same label in other systems

# --- objects that always exist
DEFAULT_DEPARTMENT = "default"  # the department of a project that names none

# --- on nodes
NODE_POOL = "aliquot.dev/node-pool"
NODE_TYPE = "run.ai/type"  # written: administrators type it (`kubectl label node ... run.ai/type=dgx-2`)
# Annotation. Node: its GPUs; pod: the GPUs it was given (JSON, see api.devices).
DEVICES = "aliquot.dev/devices"
# Once any node has one of these two labels, nodes with neither run no jobs.
GPU_WORKER = "node-role.kubernetes.io/runai-gpu-worker"
CPU_WORKER = "node-role.kubernetes.io/runai-cpu-worker"
SIMULATED = "aliquot.dev/simulated"  # "true" on nodes whose GPUs do not exist
GPU_UTILIZATION = "aliquot.dev/gpu-busy"  # annotation: the current utilization of each GPU in percent, such as "83,0"

# --- on our custom resource definitions
INSTALLED_VERSION = "aliquot.dev/version"  # annotation: the version of Aliquot that wrote the definition

# --- on anything applied with kubectl: the whole object as it was last applied, secrets included
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# --- on workloads
CREATED_BY = "aliquot.dev/created-by"  # annotation: "cli" when the command line created it
FILLED_BY = "aliquot.dev/filled-by"  # annotation: the template and policies that set fields, and which fields
TRANSLATED_SPEC = "aliquot.dev/translated"  # annotation: the spec last translated from its Run:ai object

# --- on events
WORKLOAD_UID = "aliquot.dev/workload-uid"  # the workload that the event is about, also on events of its pods

# --- on pods
WORKLOAD = "aliquot.dev/workload"
POD_INDEX = "aliquot.dev/pod-index"
EVICTION_RECORD = "aliquot.dev/evicted"  # annotation: why and for whom the pod is evicted (JSON, see scheduler)
NOMINATION = "aliquot.dev/promised"  # annotation: the node and GPUs the pod is nominated for (JSON, see scheduler)
CHECKPOINT_SAVED = "aliquot.dev/saved"  # condition: the time of the last checkpoint that the job reported
MIN_AVAILABLE = "aliquot.dev/min-available"  # annotation: how many pods of the workload start together, or not at all
PRIORITY_CLASS = "priorityClassName"  # label: the priority class, for pods whose spec cannot name it
NODE_POOL_ALIASES = ("kai.scheduler/node-pool",)  # label: the node pool the pod asks for
POD_GROUP = "pod-group-name"  # annotation of KAI: the pod group it belongs to
# Labels that Knative, Kubeflow notebooks and Deployments put on their pods.
KNATIVE_REVISION = "serving.knative.dev/revision"
NOTEBOOK = "notebook-name"
POD_TEMPLATE_HASH = "pod-template-hash"

# --- on namespaces
ENFORCE_SCHEDULER = "runai/enforce-scheduler-name"  # annotation, "true": our scheduler places every new pod there
SCHEDULER_ENFORCED = "aliquot.dev/enforce-scheduler"  # label that copies ENFORCE_SCHEDULER: webhooks select by labels

# --- on pods: GPU fractions (whole GPUs are a resource, see below)
GPU_FRACTION = "aliquot.dev/gpu-fraction"  # of each device, such as "0.5"
GPU_MEMORY_MIB = "aliquot.dev/gpu-memory"  # on each device, in MiB
GPU_DEVICES = "aliquot.dev/gpu-devices"  # the number of devices of one node; 1 by default
GPU_FRACTION_LIMIT = "aliquot.dev/gpu-fraction-limit"  # of each device: the most it may use while others are idle
GPU_MEMORY_LIMIT_MIB = "aliquot.dev/gpu-memory-limit"  # the same, in MiB
GPU_COMPUTE_MODE = "aliquot.dev/gpu-compute"  # timesharing, fair, strict or mps; the node's mode by default
GPU_FRACTION_ALIASES = ("gpu-fraction",)
GPU_MEMORY_ALIASES = ("gpu-memory",)
GPU_DEVICES_ALIASES = ("gpu-fraction-num-devices",)

# --- on Kubernetes: reservation pods for GPU fractions (see backends/kubernetes/reservations)
RESERVATION = "aliquot.dev/reservation"  # label, "true": the pod holds a whole GPU for pods with fractions of it
GPU_CLAIMS = "aliquot.dev/claims"  # annotation on a reservation pod: the pods that use or claim its GPU (JSON)
GPU_CLAIM_BROKEN = "aliquot.dev/claim-broken"  # annotation on a waiting pod: when it last lost its claim
GPU_CONFIG = "aliquot.dev/gpu-config"  # annotation: the ConfigMap that names the pod's GPU and its fraction of it

# --- extended resources
GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"

# --- node labels written by GPU feature discovery
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_COUNT = "nvidia.com/gpu.count"
GPU_MEMORY = "nvidia.com/gpu.memory"

SCHEDULER_NAMES = ("aliquot", "runai-scheduler")


def namespace_of(project: str) -> str:
    """The namespace of a project whose spec names none."""
    return PROJECT_NAMESPACE_PREFIX + project


def project_of(labels: Mapping[str, str]) -> str:
    """The project that a namespace with these labels belongs to; empty when it belongs to none."""
    return next((labels[key] for key in (PROJECT, *QUEUE_ALIASES) if labels.get(key)), "")
