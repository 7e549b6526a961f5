"""From a workload to its pod, and what a pod asks for.

A pod is written in Kubernetes' own shape, so that a kubelet could run it as it is: whole GPUs are the resource
`nvidia.com/gpu`, parts of one are annotations of ours (no resource can say 0.5).
"""

from __future__ import annotations

from aliquot import labels, units
from aliquot.core import Request
from aliquot.types import Container, Metadata, Owner, Pod, Workload
from aliquot.types.base import Json
from aliquot.types.compute import Compute
from aliquot.types.pod import EnvVar, PodSpec, Resources, VolumeMount
from aliquot.types.storage import Variable
from aliquot.units import GPU, MIB

MAIN = "main"  # the container that is the job
# What a pod gets that does not say: one core and 100 MiB for each GPU.
_CPU_PER_GPU, _MEMORY_PER_GPU = 1000, 100 * MIB
_PRIORITIES = {"training": "train", "interactive": "build", "inference": "inference"}
PRIORITY_VALUES = {"train": 50, "build-preemptible": 75, "interactive-preemptible": 75, "build": 100, "inference": 125}
_NON_PREEMPTIBLE = 100  # from this value on


def pod_name(workload: str, index: int = 0) -> str:
    return f"{workload}-{index}-0"


def priority_class(workload: Workload) -> str:
    spec = workload.spec
    if spec.priority_class:
        return spec.priority_class
    if spec.type == "interactive" and spec.preemptible:
        return "interactive-preemptible"
    return _PRIORITIES[spec.type]


def is_preemptible(pod: Pod) -> bool:
    """Whether a pod may be stopped for others: decided by its priority alone, as on Kubernetes."""
    return priority_of(pod) < _NON_PREEMPTIBLE


def priority_of(pod: Pod) -> int:
    value = PRIORITY_VALUES.get(pod.spec.priority_class_name)
    if value is None:
        return 50 if pod.spec.priority is None else pod.spec.priority
    return value


def pod_of(workload: Workload, project: str) -> Pod:
    """The one pod of a training or interactive workload."""
    spec, place = workload.spec, workload.metadata
    owner = Owner(
        api_version=labels.API_VERSION, kind="Workload", name=place.name, uid=place.uid, controller=True,
    )  # fmt: skip
    metadata = Metadata(
        name=pod_name(place.name),
        namespace=place.namespace,
        labels={**spec.labels, labels.WORKLOAD: place.name, labels.POD_INDEX: "0", labels.PROJECT: project},
        annotations={**spec.annotations, **_gpu_annotations(spec.compute)},
        owners=(owner,),
    )
    container = Container(
        name=MAIN,
        image=spec.image or "",
        image_pull_policy=spec.image_pull_policy,
        command=spec.command,
        args=spec.args,
        working_dir=spec.working_dir or "",
        env=(*(_variable(one) for one in spec.environment if not one.exclude), *_injected(workload, project)),
        resources=_resources(spec.compute),
        volume_mounts=tuple(mount for _, mount in _volumes(workload)),
        stdin=bool(spec.stdin),
        tty=bool(spec.tty),
    )
    return Pod(
        metadata=metadata,
        spec=PodSpec(
            containers=(container,),
            volumes=tuple(source for source, _ in _volumes(workload)),
            scheduler_name=spec.scheduler_name or labels.SCHEDULER_NAMES[0],
            priority_class_name=priority_class(workload),
            restart_policy="Never" if spec.type == "training" else "Always",
            node_selector={**spec.node_selector, **({labels.NODE_TYPE: spec.node_type} if spec.node_type else {})},
            tolerations=tuple(spec.tolerations),
            host_ipc=bool(spec.security.host_ipc),
            hostname=pod_name(place.name),
            termination_grace_period_seconds=spec.preemption_grace,
        ),
    )


def request_of(pod: Pod) -> Request:
    """What a pod asks for, whoever wrote it."""
    whole = cpu = memory = 0
    for container in pod.spec.containers:
        limits, requests = container.resources.limits, container.resources.requests
        whole += int(units.quantity(limits.get(labels.GPU_RESOURCE, requests.get(labels.GPU_RESOURCE, "0"))))
        cpu += units.milli(requests.get("cpu", limits.get("cpu", "0")))
        memory += units.quantity(requests.get("memory", limits.get("memory", "0")))
    marks = pod.metadata.annotations
    devices = int(marks.get(labels.GPU_DEVICES, "1"))
    fraction = _first(marks, (labels.GPU_FRACTION, *labels.GPU_FRACTION_ALIASES))
    amount = _first(marks, (labels.GPU_MEMORY_MIB, *labels.GPU_MEMORY_ALIASES))
    if fraction:
        return Request(devices=devices, milli=units.milli(fraction), cpu=cpu, memory=memory)
    if amount:
        return Request(devices=devices, memory_mib=int(amount), cpu=cpu, memory=memory)
    return Request(devices=whole, milli=GPU if whole else 0, cpu=cpu, memory=memory)


def _first(marks: dict[str, str] | object, keys: tuple[str, ...]) -> str:
    return next((marks[key] for key in keys if key in marks), "")  # type: ignore[index,operator]  # a mapping


def _gpu_annotations(compute: Compute) -> dict[str, str]:
    marks: dict[str, str] = {}
    if compute.gpu is not None and 0 < compute.gpu < GPU:
        marks[labels.GPU_FRACTION] = f"{units.whole_units(compute.gpu)}"
    if compute.gpu_memory is not None:
        marks[labels.GPU_MEMORY_MIB] = str(-(-compute.gpu_memory // MIB))
    if marks and compute.gpu_limit is not None:
        marks[labels.GPU_FRACTION_LIMIT] = f"{units.whole_units(compute.gpu_limit)}"
    if marks and compute.gpu_memory_limit is not None:
        marks[labels.GPU_MEMORY_LIMIT_MIB] = str(-(-compute.gpu_memory_limit // MIB))
    if marks and compute.mps:
        marks[labels.GPU_COMPUTE_MODE] = "mps"
    if marks and compute.gpu_devices:
        marks[labels.GPU_DEVICES] = str(compute.gpu_devices)
    return marks


def _resources(compute: Compute) -> Resources:
    gpus = _whole_gpus(compute)
    parts = max(1, -(-(compute.gpu or 0) // GPU)) if compute.gpu or compute.gpu_memory else 0
    cpu = compute.cpu if compute.cpu is not None else _CPU_PER_GPU * parts
    memory = compute.memory if compute.memory is not None else _MEMORY_PER_GPU * parts
    requests = {"cpu": f"{cpu}m", "memory": units.quantity_text(memory)} if cpu or memory else {}
    limits: dict[str, str] = {}
    if compute.cpu_limit is not None:
        limits["cpu"] = f"{compute.cpu_limit}m"
    if compute.memory_limit is not None:
        limits["memory"] = units.quantity_text(compute.memory_limit)
    if gpus:
        limits[labels.GPU_RESOURCE] = str(gpus)
    return Resources(requests=requests, limits=limits)


def _whole_gpus(compute: Compute) -> int:
    return (compute.gpu or 0) // GPU


def _volumes(workload: Workload) -> list[tuple[Json, VolumeMount]]:
    """Folders of the node, and memory to share: each with where the job sees it. The agent has the last word."""
    found: list[tuple[Json, VolumeMount]] = []
    for index, host in enumerate(workload.spec.storage.host_path):
        name = f"host-{index}"
        mount = VolumeMount(
            name=name,
            mount_path=host.mount_path,
            read_only=bool(host.read_only),
            mount_propagation=host.mount_propagation,
        )
        found.append(({"name": name, "hostPath": {"path": host.path}}, mount))
    if workload.spec.compute.large_shm:
        mount = VolumeMount(name="shm", mount_path="/dev/shm")  # noqa: S108  # inside the pod
        found.append(({"name": "shm", "emptyDir": {"medium": "Memory"}}, mount))
    return found


def _variable(variable: Variable) -> EnvVar:
    if variable.secret is not None:
        source = {"secretKeyRef": {"name": variable.secret.name, "key": variable.secret.key}}
        return EnvVar(name=variable.name, value_from=source)
    if variable.pod_field:
        return EnvVar(name=variable.name, value_from={"fieldRef": {"fieldPath": variable.pod_field}})
    return EnvVar(name=variable.name, value=variable.value or "")


def _injected(workload: Workload, project: str) -> tuple[EnvVar, ...]:
    """What every job finds in its environment."""
    place, compute = workload.metadata, workload.spec.compute
    gpus = units.whole_units(compute.gpu or 0)
    return (
        EnvVar(name="JOB_NAME", value=place.name),
        EnvVar(name="JOB_UUID", value=place.uid),
        EnvVar(name="POD_INDEX", value="0"),
        EnvVar(name="POD_UUID", value_from={"fieldRef": {"fieldPath": "metadata.uid"}}),
        EnvVar(name="NODE_NAME", value_from={"fieldRef": {"fieldPath": "spec.nodeName"}}),
        EnvVar(name="RUNAI_NUM_OF_GPUS", value=f"{gpus}"),
        EnvVar(name="RUNAI_PROJECT", value=project),
        EnvVar(name="RUNAI_JOB_NAME", value=place.name),
    )
