"""The values of the classic columns of a job, from the workload and its pods. Pure functions.

The column STATUS is more detailed than the stored phase: like `kubectl get pods` it shows the state of the containers,
so that a user sees that the image cannot be pulled, and not just that the job does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot import units
from aliquot.api import Pod, Workload
from aliquot.api.compute import Compute
from aliquot.api.pod import ContainerStatus

TYPE_LABELS = {"training": "Train", "interactive": "Interactive", "inference": "Inference"}
ENDED_STATUSES = ("Succeeded", "Failed", "Deleted", "TimedOut", "Preempted", "ContainerCannotRun")
# Reasons of a workload that are shown as its status.
_REASONS = ("TimedOut", "Preempted", "ContainerCannotRun", "Unknown")
# The status of a job with several pods is the first of these that one of its pods has: errors come first.
_STATUS_ORDER = (
    "Init:Error", "Init:CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ContainerCannotRun",
    "CrashLoopBackOff", "Error", "Unknown", "Terminating", "Running", "Init:", "PodInitializing", "ContainerCreating",
    "Pending", "Failed", "Succeeded",
)  # fmt: skip


def job_status(workload: Workload, pods: Sequence[Pod]) -> str:
    """The value of the column STATUS."""
    status = workload.status
    if workload.metadata.deleted is not None or status.phase == "Deleting":
        return "Terminating"
    if status.phase == "Completed":
        return "Succeeded"
    if status.phase == "Failed":
        return status.reason if status.reason in _REASONS else "Failed"
    live = [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")]
    if status.phase == "Stopped" or not workload.spec.active:
        if live:
            return "Terminating"
        return status.reason if status.reason in _REASONS else "Suspended"
    statuses = [pod_status(pod) for pod in pods]
    if statuses:
        return min(statuses, key=_rank)
    # The pods are gone, or the user may not see them: only the phase is left.
    return {"Running": "Running", "Degraded": "Running", "Initializing": "ContainerCreating"}.get(
        status.phase or "", "Pending"
    )


def _rank(status: str) -> int:
    status = "Init:" if status.startswith("Init:") and status not in _STATUS_ORDER else status
    return _STATUS_ORDER.index(status) if status in _STATUS_ORDER else len(_STATUS_ORDER)


def pod_status(pod: Pod) -> str:
    """The status of a pod, as `kubectl get pods` prints it."""
    if pod.metadata.deleted is not None:
        return "Terminating"
    phase = pod.status.phase
    if phase in ("Succeeded", "Unknown"):
        return phase
    for status in (_init_status(pod), *map(_container_status, pod.status.container_statuses)):
        if status:
            return status
    if phase == "Failed":
        return "Error"
    if phase == "Running":
        return "Running"
    return "ContainerCreating" if pod.spec.node_name else "Pending"


def _init_status(pod: Pod) -> str:
    statuses = pod.status.init_container_statuses
    if pod.status.phase not in ("", "Pending") or not statuses:
        return ""
    done = 0
    for status in statuses:
        state = status.state
        if state.terminated and state.terminated.exit_code == 0:
            done += 1
        elif state.terminated:
            return "Init:Error"
        elif state.waiting and state.waiting.reason not in ("", "PodInitializing"):
            return f"Init:{state.waiting.reason}"
        else:
            return f"Init:{done}/{len(statuses)}"
    return ""


def _container_status(status: ContainerStatus) -> str:
    state = status.state
    if state.waiting and state.waiting.reason:
        return state.waiting.reason
    if state.terminated:
        if state.terminated.reason == "ContainerCannotRun":
            return "ContainerCannotRun"
        return "Error" if state.terminated.exit_code else ""
    return ""


# --- GPUs


def requested_gpu(workload: Workload) -> int:
    """The milli-GPUs that all pods of a job request together."""
    requested = workload.status.requested.gpu
    if requested is not None:
        return requested
    spec = workload.spec
    per_pod = gpu_per_pod(spec.compute)
    if spec.distributed:
        return per_pod * (spec.distributed.workers or 1) + gpu_per_pod(spec.distributed.master.compute)
    if spec.serving and spec.serving.replicas is not None:
        return per_pod * spec.serving.replicas
    return per_pod * (spec.completions or 1)


def gpu_per_pod(compute: Compute) -> int:
    """The milli-GPUs that one pod requests; 0 for a request by memory or MIG profile, which depends on the node."""
    return (compute.gpu or 0) * (compute.gpu_devices or 1)


def short_gpus(workload: Workload) -> str:
    """`1` or `0.2`; a request by memory or MIG profile as text, while its number of GPUs is not known."""
    count = requested_gpu(workload)
    compute = workload.spec.compute
    if not count and compute.gpu_memory:
        return units.quantity_text(compute.gpu_memory)
    return compute.mig_profile if not count and compute.mig_profile else f"{units.whole_units(count):g}"


def gpu_cell(workload: Workload, status: str) -> str:
    """`0.30 (0.30)`: allocated and requested GPUs; `- (0.30)` for a job that has ended."""
    allocated = "-" if status in ENDED_STATUSES else two_decimals(workload.status.allocated.gpu or 0)
    return f"{allocated} ({two_decimals(requested_gpu(workload))})"


def two_decimals(milli: int) -> str:
    return f"{milli / units.GPU:.2f}"


# --- pods, nodes, addresses


def running_pods(pods: Sequence[Pod]) -> int:
    return sum(pod.status.phase == "Running" for pod in pods)


def pending_pods(pods: Sequence[Pod]) -> int:
    return sum(pod.status.phase in ("", "Pending") for pod in pods)


def node_cell(workload: Workload, pods: Sequence[Pod], status: str) -> str:
    if status in ("Pending", "Suspended"):
        return ""
    nodes = {pod.spec.node_name for pod in pods if pod.spec.node_name} or set(workload.status.nodes)
    return next(iter(nodes), "") if len(nodes) < 2 else "<multiple>"


def urls(workload: Workload) -> str:
    return ", ".join(url.url for url in workload.status.urls)


def run_seconds(workload: Workload, now: float) -> float:
    """How long the job has run, over all its starts."""
    status = workload.status
    is_running = status.phase in ("Running", "Degraded") and status.started_at is not None
    return status.run_seconds + (max(0.0, now - (status.started_at or now)) if is_running else 0.0)


def pending_reasons(workload: Workload) -> list[str]:
    """The scheduler's reasons in their order, without duplicates."""
    reasons = [refusal.text or refusal.code for refusal in workload.status.refusals]
    return list(dict.fromkeys(reasons))
