"""A policy inside the API server protects fields that only the platform writes from kubectl."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from access.team import Team
from aliquot.api import KINDS
from aliquot.backends.kubernetes import protected_fields
from aliquot.backends.kubernetes.kubeconfigs import Kubeconfigs
from aliquot.backends.kubernetes.unstructured_kinds import ADMISSION_POLICY
from aliquot.errors import Denied
from aliquot.labels import DEVICES, EVICTION_RECORD, NOMINATION, namespace_of
from aliquot.store.driver import Document
from aliquot.store.drivers.kubernetes import KubernetesDriver
from aliquot.store.http import kubeconfig
from support.kubernetes.cluster import Cluster
from support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("access")]
POD, WORKLOAD = KINDS.named("pod"), KINDS.named("workload")
REFUSED = "only the platform writes this"


@dataclass
class Member:
    """A researcher with an issued kubeconfig, on a cluster with the policies."""

    driver: KubernetesDriver
    space: str
    admin: KubernetesDriver = field(repr=False)

    def pod(self, name: str, spec: dict[str, Any] | None = None, annotations: dict[str, str] | None = None) -> Document:
        containers = [{"name": "c", "image": "x"}]
        metadata = {"name": name, "namespace": self.space, "annotations": annotations or {}}
        return Document({"metadata": metadata, "spec": {"containers": containers, **(spec or {})}})

    def workload(self, name: str, **spec: str) -> Document:
        return Document({"metadata": {"name": name, "namespace": self.space}, "spec": {"image": "x", **spec}})


@pytest_asyncio.fixture
async def member(team: Team, admin: KubernetesDriver, tmp_path: Path) -> AsyncIterator[Member]:
    await protected_fields.install(admin)
    project = await team.project()
    issued = await Kubeconfigs(admin).issue(project, await team.member(project), 3600)
    file = tmp_path / "issued"
    file.write_text(yaml.safe_dump(issued.kubeconfig))
    async with KubernetesDriver(kubeconfig.load([file])) as driver:
        created = Member(driver, namespace_of(project), admin)

        async def in_force() -> bool:
            """A policy takes effect a moment after it was created."""
            refused = 0
            for kind, invalid in (
                (POD, created.pod("probe", {"nodeName": "n"})),
                (WORKLOAD, created.workload("probe", subject="x")),
            ):
                try:
                    await driver.create(kind, invalid)
                    await driver.delete(kind, "probe", created.space, grace_seconds=0)
                except Denied as exc:
                    refused += REFUSED in exc.message
            return refused == 2

        await eventually(in_force)
        yield created


async def test_ordinary_objects(member: Member) -> None:
    """Pods and workloads without such fields can be created, changed and deleted."""
    await member.driver.create(POD, member.pod("job", annotations={"note": "mine"}))
    await member.driver.patch(POD, "job", member.space, {"metadata": {"annotations": {"note": "other"}}})
    await member.driver.create(WORKLOAD, member.workload("train"))
    await member.driver.patch(WORKLOAD, "train", member.space, {"spec": {"image": "y"}})
    await member.driver.delete(POD, "job", member.space, grace_seconds=0)


@pytest.mark.parametrize("annotation", [DEVICES, EVICTION_RECORD, NOMINATION])
async def test_annotations_of_the_scheduler(member: Member, annotation: str) -> None:
    """Only the platform can set or remove a pod's devices, eviction record or nomination."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(POD, member.pod("greedy", annotations={annotation: "[]"}))
    await member.driver.create(POD, member.pod("plain"))
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {annotation: "[]"}}})
    await member.admin.patch(POD, "plain", member.space, {"metadata": {"annotations": {annotation: "[]"}}})
    await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {"note": "mine"}}})
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {annotation: None}}})


async def test_node_name(member: Member) -> None:
    """A user cannot choose a pod's node past the scheduler."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(POD, member.pod("direct", {"nodeName": "node-1"}))


async def test_subject(member: Member) -> None:
    """A user cannot submit a workload under another name."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(WORKLOAD, member.workload("forged", subject="somebody-else"))


async def test_platform_may_write(member: Member) -> None:
    """The policies allow users who may write statuses."""
    await member.admin.create(POD, member.pod("placed", {"nodeName": "node-1"}, {DEVICES: "[]"}))
    await member.admin.create(WORKLOAD, member.workload("signed", subject="ann"))


async def test_other_namespaces(member: Member, cluster: Cluster, namespace: str) -> None:
    """In namespaces without a project the policies do not apply."""
    pod = member.pod("theirs", {"nodeName": "node-1"})
    pod.metadata["namespace"] = namespace
    manifest = json.dumps({**pod.data, "apiVersion": "v1", "kind": "Pod"})
    for space in (namespace, member.space):
        cluster.kubectl("create", "role", "outsider", "-n", space, "--verb=create", "--resource=pods")
        cluster.kubectl("create", "rolebinding", "outsider", "-n", space, "--role=outsider", "--user=outsider")
    assert cluster.kubectl("create", "--as=outsider", "-f", "-", stdin=manifest) == "pod/theirs created\n"
    moved = manifest.replace(namespace, member.space)
    assert REFUSED in cluster.kubectl("create", "--as=outsider", "-f", "-", stdin=moved, check=False)


async def test_install_is_idempotent(member: Member) -> None:
    """A second installation, as at every start, changes nothing."""
    names = [f"aliquot-trusted-{kind.plural}" for kind in KINDS if kind.protected_fields]
    before = [(await member.admin.get(ADMISSION_POLICY, name)).version for name in names]
    await protected_fields.install(member.admin)
    assert [(await member.admin.get(ADMISSION_POLICY, name)).version for name in names] == before
