"""How a pod becomes a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aliquot import labels
from aliquot.api import DeviceShare, Owner, Pod
from aliquot.api.pod import EnvVar
from aliquot.backends.local.image_catalogue import Catalogue
from aliquot.backends.local.launch import assignment_of, expand, launch_of, rejection_of
from aliquot.backends.local.runtime import CannotStart, Launch
from support.pods.agent_harness import DEVICES, NODE, command_pod


def launched(wanted: Pod) -> Launch:
    return launch_of(wanted, assignment_of(wanted), 0, DEVICES, Catalogue())


def with_env(wanted: Pod, *env: EnvVar) -> Pod:
    container = replace(wanted.spec.containers[0], env=env)
    return replace(wanted, spec=replace(wanted.spec, containers=(container,)))


def test_references_in_arguments() -> None:
    """$(NAME) becomes the variable's value; unknown names and $$ stay unchanged."""
    assert expand("$(A) $(B) $$(A) $$ $A", {"A": "x"}) == "x $(B) $(A) $$ $A"


def test_field_references() -> None:
    """A variable can be read from the pod itself."""
    source = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert (
        launched(with_env(command_pod("p", "true"), EnvVar(name="NODE_NAME", value_from=source))).env["NODE_NAME"]
        == NODE
    )


def test_unknown_sources() -> None:
    """A variable from a source that is not available here is refused by name."""
    wanted = with_env(
        command_pod("p", "true"), EnvVar(name="KEY", value_from={"secretKeyRef": {"name": "s", "key": "k"}})
    )
    with pytest.raises(CannotStart, match="variable KEY"):
        launched(wanted)


def test_limits() -> None:
    """Limits are read as quantities."""
    launch = launched(command_pod("p", "true", limits={"memory": "1Gi", "cpu": "500m"}))
    assert (launch.memory, launch.cpu) == (1 << 30, 500)


def test_bad_limits() -> None:
    """A limit that cannot be parsed is refused, not ignored."""
    with pytest.raises(CannotStart, match="memory limit"):
        launched(command_pod("p", "true", limits={"memory": "lots"}))


@pytest.mark.parametrize(
    "source, named",
    [
        (
            {"nfs": {"server": "s", "path": "/f"}},
            "NFS folder /f cannot be mounted at /data: there is no Kubernetes here",
        ),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "volume claim c cannot be mounted at /data"),
        ({"secret": "?"}, "volume 'data'"),
        ({}, "volume 'data'"),
    ],
)
def test_volumes_that_need_kubernetes(source: dict[str, object], named: str) -> None:
    """A volume that needs a cluster or a container engine is refused by name."""
    with pytest.raises(CannotStart, match=named):
        launched(command_pod("p", "true", volumes=[{"name": "data", **source}], mounts={"data": "/data"}))


def test_gpus_without_a_device_annotation() -> None:
    """A pod that asks for GPUs and has no devices was not bound by our scheduler, and is refused."""
    whole = command_pod("p", "true", limits={labels.GPU_RESOURCE: "2"})
    assert rejection_of(whole, assignment_of(whole)) == "it asks for 2 GPUs and was given 0"
    given = command_pod("p", "true", limits={labels.GPU_RESOURCE: "1"}, shares=[DeviceShare(index=0, milli=1000)])
    assert rejection_of(given, assignment_of(given)) == ""


def test_simulated_gpus_have_no_device_files() -> None:
    """A pod on a simulated node gets no device of the machine."""
    assert launched(command_pod("p", "true", shares=[DeviceShare(index=0, milli=1000)])).injection.devices == ()


@pytest.mark.parametrize("uid", ["", "..", "../../x", "/etc", "u1", "9b2f0c1e-0000-4000-8000-00000000000/"])
def test_an_owner_uid_that_is_no_uid(uid: str) -> None:
    """A pod that a user creates directly cannot choose its checkpoint folder."""
    owner = Owner(api_version=labels.API_VERSION, kind="Workload", name="w", uid=uid, controller=True)
    wanted = command_pod("p", "true")
    assert assignment_of(replace(wanted, metadata=replace(wanted.metadata, owners=(owner,)))).workload == ""


@pytest.mark.parametrize("kind, owned", [("Workload", True), ("Job", False)])
def test_the_owning_workload(kind: str, owned: bool) -> None:
    """A pod's checkpoints are those of the workload that owns it; other kinds of owners have none."""
    uid = "9b2f0c1e-0000-4000-8000-000000000001"
    owner = Owner(api_version=labels.API_VERSION, kind=kind, name="w", uid=uid, controller=True)
    wanted = command_pod("p", "true")
    assert assignment_of(replace(wanted, metadata=replace(wanted.metadata, owners=(owner,)))).workload == uid * owned
