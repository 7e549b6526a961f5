"""Builds the pod of a workload.

The pod is plain Kubernetes, so that a kubelet could run it unchanged: whole GPUs are the resource `nvidia.com/gpu`,
fractions are annotations of ours (no resource can say 0.5).
"""

from __future__ import annotations

from aliquot import labels, units
from aliquot.api import Container, Metadata, Owner, Pod, Workload
from aliquot.api.compute import Compute
from aliquot.api.network import Port
from aliquot.api.pod import ContainerPort, EnvVar, LocalReference, PodSpec, Resources
from aliquot.api.storage import Variable
from aliquot.podspec.probes import probes_of
from aliquot.podspec.security import container_security, pod_security
from aliquot.podspec.volumes import mounts_of
from aliquot.units import GPU, MIB

MAIN = "main"  # the name of the container that runs the job
# Default requests for each GPU: one core and 100 MiB.
_CPU_PER_GPU, _MEMORY_PER_GPU = 1000, 100 * MIB
_PRIORITY_CLASSES = {"training": "train", "interactive": "build", "inference": "inference"}


def pod_name(workload: str, index: int = 0) -> str:
    return f"{workload}-{index}-0"


def priority_class(workload: Workload) -> str:
    spec = workload.spec
    if spec.priority_class:
        return spec.priority_class
    if spec.type == "interactive" and spec.preemptible:
        return "interactive-preemptible"
    return _PRIORITY_CLASSES[spec.type]


def build_pod(workload: Workload, project: str) -> Pod:
    """The one pod of a training or interactive workload."""
    spec, meta, mounts = workload.spec, workload.metadata, mounts_of(workload)
    owner = Owner(
        api_version=labels.API_VERSION, kind="Workload", name=meta.name, uid=meta.uid, controller=True,
    )  # fmt: skip
    container = Container(
        name=MAIN,
        image=spec.image or "",
        image_pull_policy=spec.image_pull_policy,
        command=spec.command,
        args=spec.args,
        working_dir=spec.working_dir or "",
        env=(*(_env_var(v) for v in spec.environment if not v.exclude), *_injected_env(workload, project)),
        resources=_resources(spec.compute),
        ports=tuple(_container_port(port) for port in spec.ports if not port.exclude),
        volume_mounts=tuple(mount for _, mount in mounts),
        security_context=container_security(spec.security) or None,
        **probes_of(spec.probes),
        stdin=bool(spec.stdin),
        tty=bool(spec.tty),
    )
    return Pod(
        metadata=Metadata(
            name=pod_name(meta.name),
            namespace=meta.namespace,
            labels={**spec.labels, labels.WORKLOAD: meta.name, labels.POD_INDEX: "0", labels.PROJECT: project},
            annotations={**spec.annotations, **_gpu_annotations(spec.compute)},
            owners=(owner,),
        ),
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
            hostname=pod_name(meta.name),
            termination_grace_period_seconds=spec.preemption_grace,
        ),
    )


def _gpu_annotations(compute: Compute) -> dict[str, str]:
    """The GPU fraction that a pod asks for; empty where it asks for whole GPUs or none."""
    annotations: dict[str, str] = {}
    if compute.gpu is not None and 0 < compute.gpu < GPU:
        annotations[labels.GPU_FRACTION] = f"{units.whole_units(compute.gpu)}"
    if compute.gpu_memory is not None:
        annotations[labels.GPU_MEMORY_MIB] = _mib_text(compute.gpu_memory)
    if not annotations:
        return {}
    if compute.gpu_limit is not None:
        annotations[labels.GPU_FRACTION_LIMIT] = f"{units.whole_units(compute.gpu_limit)}"
    if compute.gpu_memory_limit is not None:
        annotations[labels.GPU_MEMORY_LIMIT_MIB] = _mib_text(compute.gpu_memory_limit)
    if compute.mps:
        annotations[labels.GPU_COMPUTE_MODE] = "mps"
    if compute.gpu_devices:
        annotations[labels.GPU_DEVICES] = str(compute.gpu_devices)
    return annotations


def _mib_text(size: int) -> str:
    """MiB, rounded up."""
    return str(-(-size // MIB))


def _resources(compute: Compute) -> Resources:
    whole_gpus = (compute.gpu or 0) // GPU
    # A fraction, or an amount of GPU memory, counts as one GPU.
    gpus = max(1, -(-(compute.gpu or 0) // GPU)) if compute.gpu or compute.gpu_memory else 0
    cpu = compute.cpu if compute.cpu is not None else _CPU_PER_GPU * gpus
    memory = compute.memory if compute.memory is not None else _MEMORY_PER_GPU * gpus
    requests = {"cpu": f"{cpu}m", "memory": units.quantity_text(memory)} if cpu or memory else {}
    limits: dict[str, str] = {}
    if compute.cpu_limit is not None:
        limits["cpu"] = f"{compute.cpu_limit}m"
    if compute.memory_limit is not None:
        limits["memory"] = units.quantity_text(compute.memory_limit)
    if whole_gpus:
        limits[labels.GPU_RESOURCE] = str(whole_gpus)
    return Resources(requests=requests, limits=limits)


def _container_port(port: Port) -> ContainerPort:
    return ContainerPort(container_port=port.container, name=port.name, protocol=port.protocol or "TCP")


def _env_var(variable: Variable) -> EnvVar:
    if variable.secret is not None:
        source = {"secretKeyRef": {"name": variable.secret.name, "key": variable.secret.key}}
        return EnvVar(name=variable.name, value_from=source)
    if variable.config_map is not None:
        source = {"configMapKeyRef": {"name": variable.config_map.name, "key": variable.config_map.key}}
        return EnvVar(name=variable.name, value_from=source)
    if variable.pod_field:
        return EnvVar(name=variable.name, value_from={"fieldRef": {"fieldPath": variable.pod_field}})
    return EnvVar(name=variable.name, value=variable.value or "")


def _injected_env(workload: Workload, project: str) -> tuple[EnvVar, ...]:
    """The variables that every job finds in its environment."""
    meta, compute = workload.metadata, workload.spec.compute
    gpus = units.whole_units(compute.gpu or 0)
    return (
        EnvVar(name="JOB_NAME", value=meta.name),
        EnvVar(name="JOB_UUID", value=meta.uid),
        EnvVar(name="POD_INDEX", value="0"),
        EnvVar(name="POD_UUID", value_from={"fieldRef": {"fieldPath": "metadata.uid"}}),
        EnvVar(name="NODE_NAME", value_from={"fieldRef": {"fieldPath": "spec.nodeName"}}),
        EnvVar(name="RUNAI_NUM_OF_GPUS", value=f"{gpus}"),
        EnvVar(name="RUNAI_PROJECT", value=project),
        EnvVar(name="RUNAI_JOB_NAME", value=meta.name),
    )
