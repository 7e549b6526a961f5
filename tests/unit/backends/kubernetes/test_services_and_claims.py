"""A workload's service and claims, as Kubernetes wants them."""

from __future__ import annotations

import pytest

from aliquot.api import Metadata, Workload
from aliquot.api.network import Port
from aliquot.api.security import Security
from aliquot.api.storage import ClaimMount, FilesOf, Nfs, Storage
from aliquot.api.workload import WorkloadSpec
from aliquot.backends.kubernetes.services_and_claims import claims_of, service_of
from aliquot.podspec.builder import build_pod


def workload(spec: WorkloadSpec) -> Workload:
    return Workload(metadata=Metadata(name="w", namespace="runai-a", uid="u"), spec=spec)


@pytest.mark.parametrize(
    "word, kind", [("ingress", "ClusterIP"), ("nodeport", "NodePort"), ("loadbalancer", "LoadBalancer")]
)
def test_ports_are_served(word: str, kind: str) -> None:
    """The service type of the command line decides how far the address reaches."""
    made = service_of(workload(WorkloadSpec(service_type=word, ports=(Port(container=8888),))))  # type: ignore[arg-type]
    assert made is not None
    assert (made.metadata.name, made.spec.type) == ("w", kind)
    assert [(port.port, port.target_port) for port in made.spec.ports] == [(8888, 8888)]
    assert dict(made.spec.selector) == {"aliquot.dev/workload": "w"}
    assert made.metadata.owners[0].uid == "u"


def test_no_ports_no_service() -> None:
    """A job that nobody calls has no address."""
    assert service_of(workload(WorkloadSpec())) is None


def test_outside_ports() -> None:
    """A port of the node where it is a node port, a port of the service elsewhere."""
    ports = (Port(container=80, external=30080),)
    node = service_of(workload(WorkloadSpec(service_type="nodeport", ports=ports)))
    inside = service_of(workload(WorkloadSpec(ports=ports)))
    assert node is not None
    assert inside is not None
    assert (node.spec.ports[0].port, node.spec.ports[0].node_port) == (80, 30080)
    assert (inside.spec.ports[0].port, inside.spec.ports[0].node_port) == (30080, None)


def test_new_claims_are_made_and_others_only_mounted() -> None:
    """One that exists is somebody's; a new one without a name is called after the workload."""
    mounts = (
        ClaimMount(path="/old", claim_name="data", existing=True),
        ClaimMount(path="/new", size=10 << 30, storage_class="fast"),
    )
    job = workload(WorkloadSpec(storage=Storage(pvc=mounts)))
    (made,) = claims_of(job)
    assert (made.metadata.name, made.spec.storage_class_name) == ("w-pvc-1", "fast")
    assert dict(made.spec.resources.requests) == {"storage": "10Gi"}
    pod = build_pod(job, "a").spec
    assert [one["persistentVolumeClaim"]["claimName"] for one in pod.volumes] == ["data", "w-pvc-1"]
    assert [one.mount_path for one in pod.containers[0].volume_mounts] == ["/old", "/new"]


def test_what_else_is_mounted() -> None:
    """File servers, ConfigMaps and Secrets are volumes of the pod."""
    storage = Storage(
        nfs=(Nfs(server="files", path="/home", mount_path="/home", read_only=True),),
        config_map=(FilesOf(source="settings", path="/etc/settings"),),
        secret=(FilesOf(source="key", path="/key", sub_path="id", default_mode=0o400),),
    )
    pod = build_pod(workload(WorkloadSpec(storage=storage)), "a").spec
    assert [set(one) - {"name"} for one in pod.volumes] == [{"nfs"}, {"configMap"}, {"secret"}]
    assert pod.volumes[2]["secret"] == {"secretName": "key", "defaultMode": 0o400}
    assert [one.read_only for one in pod.containers[0].volume_mounts] == [True, True, True]


def test_as_whom_it_runs() -> None:
    """What the workload says about users, groups and capabilities is in its pod, and nothing where it says nothing."""
    security = Security(run_as_uid=7, run_as_gid=8, capabilities=("SYS_PTRACE",), allow_privilege_escalation=False)
    pod = build_pod(workload(WorkloadSpec(security=security)), "a").spec
    assert pod.security_context == {"runAsUser": 7, "runAsGroup": 8}
    assert pod.containers[0].security_context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["SYS_PTRACE"]},
    }
    plain = build_pod(workload(WorkloadSpec()), "a").spec
    assert plain.security_context is None
    assert plain.containers[0].security_context is None
