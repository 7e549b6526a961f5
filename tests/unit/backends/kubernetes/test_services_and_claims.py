"""The Service and the volume claims of a workload."""

from __future__ import annotations

import pytest

from aliquot.api.network import Port
from aliquot.api.security import Security
from aliquot.api.storage import ClaimMount, FilesOf, Nfs, Storage
from aliquot.backends.kubernetes.services_and_claims import claims_of, service_of
from aliquot.podspec.builder import build_pod
from support.objects import workload


@pytest.mark.parametrize(
    "requested, service_type", [("ingress", "ClusterIP"), ("nodeport", "NodePort"), ("loadbalancer", "LoadBalancer")]
)
def test_service_types(requested: str, service_type: str) -> None:
    """The service type of the command line decides the type of the Service."""
    service = service_of(workload(service_type=requested, ports=(Port(container=8888),)))
    assert service is not None
    assert (service.metadata.name, service.spec.type) == ("w", service_type)
    assert [(port.port, port.target_port) for port in service.spec.ports] == [(8888, 8888)]
    assert dict(service.spec.selector) == {"aliquot.dev/workload": "w"}
    assert service.metadata.owners[0].uid == "u"


def test_no_ports_no_service() -> None:
    """A workload without ports has no Service."""
    assert service_of(workload()) is None


def test_external_ports() -> None:
    """An external port is the node port of a NodePort Service, and the port of any other Service."""
    ports = (Port(container=80, external=30080),)
    node = service_of(workload(service_type="nodeport", ports=ports))
    inside = service_of(workload(ports=ports))
    assert node is not None
    assert inside is not None
    assert (node.spec.ports[0].port, node.spec.ports[0].node_port) == (80, 30080)
    assert (inside.spec.ports[0].port, inside.spec.ports[0].node_port) == (30080, None)


def test_new_and_existing_claims() -> None:
    """An existing claim is only mounted; a new one without a name is named after the workload."""
    mounts = (
        ClaimMount(path="/old", claim_name="data", existing=True),
        ClaimMount(path="/new", size=10 << 30, storage_class="fast"),
    )
    job = workload(storage=Storage(pvc=mounts))
    (created,) = claims_of(job)
    assert (created.metadata.name, created.spec.storage_class_name) == ("w-pvc-1", "fast")
    assert dict(created.spec.resources.requests) == {"storage": "10Gi"}
    pod = build_pod(job, "a").spec
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in pod.volumes] == ["data", "w-pvc-1"]
    assert [mount.mount_path for mount in pod.containers[0].volume_mounts] == ["/old", "/new"]


def test_other_volumes() -> None:
    """NFS exports, ConfigMaps and Secrets are volumes of the pod."""
    storage = Storage(
        nfs=(Nfs(server="files", path="/home", mount_path="/home", read_only=True),),
        config_map=(FilesOf(source="settings", path="/etc/settings"),),
        secret=(FilesOf(source="key", path="/key", sub_path="id", default_mode=0o400),),
    )
    pod = build_pod(workload(storage=storage), "a").spec
    assert [set(volume) - {"name"} for volume in pod.volumes] == [{"nfs"}, {"configMap"}, {"secret"}]
    assert pod.volumes[2]["secret"] == {"secretName": "key", "defaultMode": 0o400}
    assert [mount.read_only for mount in pod.containers[0].volume_mounts] == [True, True, True]


def test_security_context() -> None:
    """Users, groups and capabilities of the workload are in its pod; without them there is no security context."""
    security = Security(run_as_uid=7, run_as_gid=8, capabilities=("SYS_PTRACE",), allow_privilege_escalation=False)
    pod = build_pod(workload(security=security), "a").spec
    assert pod.security_context == {"runAsUser": 7, "runAsGroup": 8}
    assert pod.containers[0].security_context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["SYS_PTRACE"]},
    }
    plain = build_pod(workload(), "a").spec
    assert plain.security_context is None
    assert plain.containers[0].security_context is None
