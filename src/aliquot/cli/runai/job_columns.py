"""What the classic columns say of a workload, from the workload and its pods. Pure; the tables only print it.

The stored phase is the platform's own word. The words shown here are older and finer: they look inside the pods, as
`kubectl get pods` does, so that a user sees that the image is missing and not just that nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from aliquot import units
from aliquot.api import Pod, Workload
from aliquot.api.compute import Compute
from aliquot.api.pod import ContainerStatus

TYPE_LABELS = {"training": "Train", "interactive": "Interactive", "inference": "Inference"}
ENDED_STATUSES = ("Succeeded", "Failed", "Deleted", "TimedOut", "Preempted", "ContainerCannotRun")
# Reasons of a workload that are the classic status word themselves.
_REASONS = ("TimedOut", "Preempted", "ContainerCannotRun", "Unknown")
# Of several pods the one that tells most about the whole: trouble first, then what is under way, then the good.
_TELLING = (
    "Init:Error", "Init:CrashLoopBackOff", "ErrImagePull", "ImagePullBackOff", "ContainerCannotRun",
    "CrashLoopBackOff", "Error", "Unknown", "Terminating", "Running", "Init:", "PodInitializing", "ContainerCreating",
    "Pending", "Failed", "Succeeded",
)  # fmt: skip


def job_status(workload: Workload, pods: Sequence[Pod]) -> str:
    """One of the classic status words."""
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
    arguments = [pod_status(pod) for pod in pods]
    if arguments:
        return min(arguments, key=_rank)
    # The pods may be gone or not ours to see; the phase is the next best.
    return {"Running": "Running", "Degraded": "Running", "Initializing": "ContainerCreating"}.get(
        status.phase or "", "Pending"
    )


def _rank(word: str) -> int:
    word = "Init:" if word.startswith("Init:") and word not in _TELLING else word
    return _TELLING.index(word) if word in _TELLING else len(_TELLING)


def pod_status(pod: Pod) -> str:
    """How a pod is, in one word."""
    if pod.metadata.deleted is not None:
        return "Terminating"
    phase = pod.status.phase
    if phase in ("Succeeded", "Unknown"):
        return phase
    for word in (_init_word(pod), *map(_container_word, pod.status.container_statuses)):
        if word:
            return word
    if phase == "Failed":
        return "Error"
    if phase == "Running":
        return "Running"
    return "ContainerCreating" if pod.spec.node_name else "Pending"


def _init_word(pod: Pod) -> str:
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


def _container_word(status: ContainerStatus) -> str:
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
    """Thousandths of GPUs it asks for in all its pods together."""
    requested = workload.status.requested.gpu
    if requested is not None:
        return requested
    spec = workload.spec
    each = gpu_per_pod(spec.compute)
    if spec.distributed:
        return each * (spec.distributed.workers or 1) + gpu_per_pod(spec.distributed.master.compute)
    if spec.serving and spec.serving.replicas is not None:
        return each * spec.serving.replicas
    return each * (spec.completions or 1)


def gpu_per_pod(compute: Compute) -> int:
    """Thousandths that one pod asks for; 0 for memory and MIG, whose size only the node knows."""
    return (compute.gpu or 0) * (compute.gpu_devices or 1)


def short_gpus(workload: Workload) -> str:
    """`1`, `0.2`; a request by memory as it was made while nothing better is known."""
    count = requested_gpu(workload)
    compute = workload.spec.compute
    if not count and compute.gpu_memory:
        return units.quantity_text(compute.gpu_memory)
    return compute.mig_profile if not count and compute.mig_profile else f"{units.whole_units(count):g}"


def gpu_cell(workload: Workload, word: str) -> str:
    """`0.30 (0.30)`: allocated and requested; an ended job has `-`."""
    allocated = "-" if word in ENDED_STATUSES else two_decimals(workload.status.allocated.gpu or 0)
    return f"{allocated} ({two_decimals(requested_gpu(workload))})"


def two_decimals(milli: int) -> str:
    return f"{milli / units.GPU:.2f}"


# --- pods, nodes, addresses


def running_pods(pods: Sequence[Pod]) -> int:
    return sum(pod.status.phase == "Running" for pod in pods)


def pending_pods(pods: Sequence[Pod]) -> int:
    return sum(pod.status.phase in ("", "Pending") for pod in pods)


def node_cell(workload: Workload, pods: Sequence[Pod], word: str) -> str:
    if word in ("Pending", "Suspended"):
        return ""
    nodes = {pod.spec.node_name for pod in pods if pod.spec.node_name} or set(workload.status.nodes)
    return next(iter(nodes), "") if len(nodes) < 2 else "<multiple>"


def urls(workload: Workload) -> str:
    return ", ".join(url.url for url in workload.status.urls)


def run_seconds(workload: Workload, now: float) -> float:
    """How long it ran, over all starts."""
    status = workload.status
    under_way = status.phase in ("Running", "Degraded") and status.started_at is not None
    return status.run_seconds + (max(0.0, now - (status.started_at or now)) if under_way else 0.0)


def pending_reasons(workload: Workload) -> list[str]:
    """The scheduler's reasons, each sentence once, in its own order."""
    reasons = [refusal.text or refusal.code for refusal in workload.status.refusals]
    return list(dict.fromkeys(reasons))
