"""Fields that only the platform writes are safe from kubectl too, by a policy inside the API server."""

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
from support.stores.running import until

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("access")]
POD, WORKLOAD = KINDS.named("pod"), KINDS.named("workload")
REFUSED = "only the platform writes this"


@dataclass
class Member:
    """A researcher with an issued kubeconfig, where the policies are in force."""

    driver: KubernetesDriver
    space: str
    admin: KubernetesDriver = field(repr=False)

    def pod(self, name: str, spec: dict[str, Any] | None = None, **annotations: str) -> Document:
        containers = [{"name": "c", "image": "x"}]
        metadata = {"name": name, "namespace": self.space, "annotations": annotations}
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
        found = Member(driver, namespace_of(project), admin)

        async def in_force() -> bool:
            """A policy works a moment after it was made."""
            refused = 0
            for kind, wrong in (
                (POD, found.pod("probe", {"nodeName": "n"})),
                (WORKLOAD, found.workload("probe", subject="x")),
            ):
                try:
                    await driver.create(kind, wrong)
                    await driver.delete(kind, "probe", found.space, grace_seconds=0)
                except Denied as exc:
                    refused += REFUSED in exc.message
            return refused == 2

        await until(in_force)
        yield found


async def test_ordinary_objects_are_not_held_up(member: Member) -> None:
    """Pods and workloads without such fields come, change and go."""
    await member.driver.create(POD, member.pod("job", note="mine"))
    await member.driver.patch(POD, "job", member.space, {"metadata": {"annotations": {"note": "other"}}})
    await member.driver.create(WORKLOAD, member.workload("train"))
    await member.driver.patch(WORKLOAD, "train", member.space, {"spec": {"image": "y"}})
    await member.driver.delete(POD, "job", member.space, grace_seconds=0)


@pytest.mark.parametrize("mark", [DEVICES, EVICTION_RECORD, NOMINATION])
async def test_marks_of_the_scheduler(member: Member, mark: str) -> None:
    """Nobody gives a pod devices, a notice or a promised place but the platform; nor takes them away."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(POD, member.pod("greedy", **{mark: "[]"}))
    await member.driver.create(POD, member.pod("plain"))
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {mark: "[]"}}})
    await member.admin.patch(POD, "plain", member.space, {"metadata": {"annotations": {mark: "[]"}}})
    await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {"note": "mine"}}})
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.patch(POD, "plain", member.space, {"metadata": {"annotations": {mark: None}}})


async def test_a_node_is_not_chosen_past_the_scheduler(member: Member) -> None:
    """A pod that names its node would hold what the scheduler gave to others."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(POD, member.pod("direct", {"nodeName": "node-1"}))


async def test_nobody_signs_for_another(member: Member) -> None:
    """Who submitted a workload is not its owner's to say."""
    with pytest.raises(Denied, match=REFUSED):
        await member.driver.create(WORKLOAD, member.workload("forged", subject="somebody-else"))


async def test_the_platform_writes_them(member: Member) -> None:
    """The policies stand in nobody's way who may write statuses."""
    await member.admin.create(POD, member.pod("placed", {"nodeName": "node-1"}, **{DEVICES: "[]"}))
    await member.admin.create(WORKLOAD, member.workload("signed", subject="ann"))


async def test_other_namespaces_are_not_ours_to_judge(member: Member, cluster: Cluster, namespace: str) -> None:
    """Where no project is, whoever may create pods names their node as ever."""
    pod = member.pod("theirs", {"nodeName": "node-1"})
    pod.metadata["namespace"] = namespace
    manifest = json.dumps({**pod.data, "apiVersion": "v1", "kind": "Pod"})
    for space in (namespace, member.space):
        cluster.kubectl("create", "role", "outsider", "-n", space, "--verb=create", "--resource=pods")
        cluster.kubectl("create", "rolebinding", "outsider", "-n", space, "--role=outsider", "--user=outsider")
    assert cluster.kubectl("create", "--as=outsider", "-f", "-", stdin=manifest) == "pod/theirs created\n"
    moved = manifest.replace(namespace, member.space)
    assert REFUSED in cluster.kubectl("create", "--as=outsider", "-f", "-", stdin=moved, check=False)


async def test_installing_again_changes_nothing(member: Member) -> None:
    """Every start installs."""
    names = [f"aliquot-trusted-{kind.plural}" for kind in KINDS if kind.protected_fields]
    before = [(await member.admin.get(ADMISSION_POLICY, name)).version for name in names]
    await protected_fields.install(member.admin)
    assert [(await member.admin.get(ADMISSION_POLICY, name)).version for name in names] == before
