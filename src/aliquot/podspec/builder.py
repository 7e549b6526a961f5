"""From a workload to its pod, and what a pod asks for.

A pod is written in Kubernetes' own shape, so that a kubelet could run it as it is: whole GPUs are the resource
`nvidia.com/gpu`, parts of one are annotations of ours (no resource can say 0.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot import labels, units
from aliquot.api import Container, Metadata, Owner, Pod, Workload
from aliquot.api.compute import Compute
from aliquot.api.network import Port
from aliquot.api.pod import ContainerPort, EnvVar, LocalReference, PodSpec, Resources
from aliquot.api.storage import Variable
from aliquot.planner import Request
from aliquot.podspec.probes import probes_of
from aliquot.podspec.requests import default_priority, is_foreign
from aliquot.podspec.security import container_security, pod_security
from aliquot.podspec.volumes import mounts_of
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
    """Whether a pod may be stopped for others: decided by its priority alone. What other schedulers placed is theirs
    to stop."""
    return priority_of(pod) < _NON_PREEMPTIBLE and not is_foreign(pod)


def priority_of(pod: Pod) -> int:
    """By its label, its class, or what made it. Kubernetes writes 0 where nobody said anything."""
    for name in (pod.metadata.labels.get(labels.PRIORITY_CLASS, ""), pod.spec.priority_class_name):
        if name in PRIORITY_VALUES:
            return PRIORITY_VALUES[name]
    if pod.spec.priority_class_name or pod.spec.priority:
        return pod.spec.priority or 0
    return PRIORITY_VALUES[default_priority(pod)]


def pod_of(workload: Workload, project: str) -> Pod:
    """The one pod of a training or interactive workload."""
    spec, place, mounts = workload.spec, workload.metadata, mounts_of(workload)
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
        ports=tuple(_port(one) for one in spec.ports if not one.exclude),
        volume_mounts=tuple(mount for _, mount in mounts),
        security_context=container_security(spec.security) or None,
        **probes_of(spec.probes),
        stdin=bool(spec.stdin),
        tty=bool(spec.tty),
    )
    return Pod(
        metadata=metadata,
        spec=PodSpec(
            containers=(container,),
            volumes=tuple(source for source, _ in mounts),
            scheduler_name=spec.scheduler_name or labels.SCHEDULER_NAMES[0],
            priority_class_name=priority_class(workload),
            restart_policy="Never" if spec.type == "training" else "Always",
            node_selector={**spec.node_selector, **({labels.NODE_TYPE: spec.node_type} if spec.node_type else {})},
            tolerations=tuple(spec.tolerations),
            host_ipc=bool(spec.security.host_ipc),
            host_network=bool(spec.security.host_network),
            security_context=pod_security(spec.security) or None,
            image_pull_secrets=tuple(LocalReference(name=name) for name in spec.image_pull_secrets),
            hostname=pod_name(place.name),
            termination_grace_period_seconds=spec.preemption_grace,
        ),
    )


def request_of(pod: Pod) -> Request:
    """What a pod asks for, whoever wrote it."""
    whole, cpu, memory = _asked(pod.spec)
    marks = pod.metadata.annotations
    devices = int(_first(marks, (labels.GPU_DEVICES, *labels.GPU_DEVICES_ALIASES)) or "1")
    fraction = _first(marks, (labels.GPU_FRACTION, *labels.GPU_FRACTION_ALIASES))
    amount = _first(marks, (labels.GPU_MEMORY_MIB, *labels.GPU_MEMORY_ALIASES))
    if fraction:
        return Request(devices=devices, milli=units.milli(fraction), cpu=cpu, memory=memory)
    if amount:
        return Request(devices=devices, memory_mib=int(amount), cpu=cpu, memory=memory)
    return Request(devices=whole, milli=GPU if whole else 0, cpu=cpu, memory=memory)


Three = tuple[int, int, int]  # whole GPUs, milli-CPU, bytes


def _asked(spec: PodSpec) -> Three:
    """As Kubernetes counts: containers that run together add up, and of those that run before them the largest is
    enough, next to the ones that stay."""
    running = _sum(_of_container(one) for one in spec.containers)
    beside, before = (0, 0, 0), (0, 0, 0)
    for one in spec.init_containers:
        mine = _sum((_of_container(one), beside))
        if one.restart_policy == "Always":
            beside = mine
        before = (max(before[0], mine[0]), max(before[1], mine[1]), max(before[2], mine[2]))
    running = _sum((running, beside))
    extra = _quantities(spec.overhead, {})
    return _sum(((max(running[0], before[0]), max(running[1], before[1]), max(running[2], before[2])), extra))


def _of_container(container: Container) -> Three:
    return _quantities(container.resources.requests, container.resources.limits)


def _quantities(requests: Mapping[str, str], limits: Mapping[str, str]) -> Three:
    gpus = limits.get(labels.GPU_RESOURCE, requests.get(labels.GPU_RESOURCE, "0"))
    cpu = units.milli(requests.get("cpu", limits.get("cpu", "0")))
    return int(units.quantity(gpus)), cpu, units.quantity(requests.get("memory", limits.get("memory", "0")))


def _sum(parts: Iterable[Three]) -> Three:
    gpus = cpu = memory = 0
    for part in parts:
        gpus, cpu, memory = gpus + part[0], cpu + part[1], memory + part[2]
    return gpus, cpu, memory


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


def _port(port: Port) -> ContainerPort:
    return ContainerPort(container_port=port.container, name=port.name, protocol=port.protocol or "TCP")


def _variable(variable: Variable) -> EnvVar:
    if variable.secret is not None:
        source = {"secretKeyRef": {"name": variable.secret.name, "key": variable.secret.key}}
        return EnvVar(name=variable.name, value_from=source)
    if variable.config_map is not None:
        source = {"configMapKeyRef": {"name": variable.config_map.name, "key": variable.config_map.key}}
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
