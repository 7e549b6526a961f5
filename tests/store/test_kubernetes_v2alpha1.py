"""Run:ai's kinds on a real API server: a manifest creates a workload, and its status is written back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
import yaml

from aliquot import labels
from aliquot.admission.workload_admission import WorkloadAdmission
from aliquot.api import Event, Json, Policy, Workload, decode
from aliquot.api.workload import WorkloadStatus
from aliquot.backends.kubernetes.v2alpha1.controller import RunaiWorkloadController
from aliquot.backends.kubernetes.v2alpha1.definitions import INTERACTIVE, RUNAI_KINDS, TRAINING, definitions
from aliquot.errors import NotFound
from aliquot.store.drivers.kubernetes import KubernetesDriver, install
from aliquot.store.http import kubeconfig
from aliquot.store.informer import Informers
from aliquot.store.typed_store import Store
from support.kubernetes.cluster import Cluster
from support.stores.running import running
from support.waiting import eventually

pytestmark = pytest.mark.kube


class RunaiKinds:
    """Applies Run:ai manifests in one namespace and waits for what becomes of them."""

    def __init__(self, cluster: Cluster, store: Store, namespace: str) -> None:
        self._cluster, self.store, self.namespace = cluster, store, namespace

    def apply(self, name: str, kind: str = "TrainingWorkload", /, **spec: Any) -> str:
        manifest = {
            "apiVersion": "run.ai/v2alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec,
        }  # fmt: skip
        return self._cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl("-n", self.namespace, *arguments)

    async def workload(self, name: str) -> Workload | None:
        try:
            return await self.store.get(Workload, name, self.namespace)
        except NotFound:
            return None

    async def until_workload(
        self, name: str, condition: Callable[[Workload], bool] = lambda workload: True
    ) -> Workload:
        async def is_met() -> bool:
            workload = await self.workload(name)
            return workload is not None and condition(workload)

        await eventually(is_met)
        workload = await self.workload(name)
        assert workload is not None
        return workload

    async def until_gone(self, name: str) -> None:
        async def is_gone() -> bool:
            return await self.workload(name) is None

        await eventually(is_gone)

    async def until_status(self, name: str, kind: Any = TRAINING, **wanted: Any) -> Json:
        last: list[Json] = [{}]

        async def is_met() -> bool:
            last[0] = (await self.store.driver.get(kind, name, self.namespace)).data.get("status") or {}
            return all(last[0].get(field) == value for field, value in wanted.items())

        await eventually(is_met)
        return last[0]


def condition(status: Json, name: str) -> tuple[str, str]:
    condition = next(item for item in status["conditions"] if item["type"] == name)
    return condition["status"], condition.get("message", "")


@pytest_asyncio.fixture
async def runai(cluster_with_kinds: Cluster, namespace: str) -> AsyncIterator[RunaiKinds]:
    """Both controllers on the cluster, with a namespace for one test."""
    async with KubernetesDriver(kubeconfig.load([cluster_with_kinds.kubeconfig])) as driver:
        await install(driver, definitions())
        async with running_controllers(driver):
            yield RunaiKinds(cluster_with_kinds, Store(driver), namespace)


def running_controllers(driver: KubernetesDriver) -> Any:
    informers = Informers(driver)
    admission, workloads = WorkloadAdmission(driver, informers), informers.of(Workload)
    controllers = [RunaiWorkloadController(Store(driver), kind, admission, workloads) for kind in RUNAI_KINDS]
    work = [informer.run() for informer in informers]
    return running(
        *work, *(each.objects.run() for each in controllers), *(each.controller.run() for each in controllers)
    )


def value(given: Any) -> Json:
    return {"value": given}


async def test_manifest_creates_a_workload(runai: RunaiKinds) -> None:
    """kubectl applies it unchanged, and it owns a workload of the same name and content."""
    runai.apply("job-1", gpu=value("0.5"), image=value("gcr.io/run-ai-demo/quickstart"), name=value("job-1"))

    workload = await runai.until_workload("job-1")

    assert (workload.spec.type, workload.spec.image, workload.spec.compute.gpu) == (
        "training",
        "gcr.io/run-ai-demo/quickstart",
        500,
    )
    assert [(owner.kind, owner.name) for owner in workload.metadata.owners] == [("TrainingWorkload", "job-1")]
    status = await runai.until_status("job-1", workload="job-1", phase="Creating")
    assert (condition(status, "Accepted")[0], condition(status, "Complete")) == ("True", ("True", ""))


async def test_interactive_manifest(runai: RunaiKinds) -> None:
    """An InteractiveWorkload creates an interactive workload."""
    runai.apply("nb", "InteractiveWorkload", image=value("jupyter/base-notebook"))

    assert (await runai.until_workload("nb")).spec.type == "interactive"
    await runai.until_status("nb", INTERACTIVE, workload="nb")


async def test_status_follows_the_workload(runai: RunaiKinds) -> None:
    """Phase, message and nodes are those of the workload, also in kubectl's columns."""
    runai.apply("job-1", image=value("x"), gpu=value("2"), username=value("frej"))
    workload = await runai.until_workload("job-1")
    await runai.until_status("job-1", workload="job-1")

    status = WorkloadStatus(phase="Running", nodes=("dgx1-1",), message="all is well")
    await runai.store.update_status(replace(workload, status=status), seen=workload)

    await runai.until_status("job-1", phase="Running", nodes=["dgx1-1"], message="all is well")
    listed = runai.kubectl("get", "trainingworkloads", "--no-headers")
    assert listed.split()[:4] == ["job-1", "Running", "2", "frej"]


async def test_active_false_suspends(runai: RunaiKinds) -> None:
    """`spec.active.value: false` stops the workload, true starts it again."""
    runai.apply("job-1", image=value("x"))
    await runai.until_workload("job-1", lambda workload: workload.spec.active)

    runai.apply("job-1", image=value("x"), active=value(False))
    await runai.until_workload("job-1", lambda workload: not workload.spec.active)

    runai.apply("job-1", image=value("x"), active=value(True))
    await runai.until_workload("job-1", lambda workload: workload.spec.active)


async def test_only_changed_fields_are_updated(runai: RunaiKinds) -> None:
    """A workload that a user suspended stays suspended when another field of the manifest changes."""
    runai.apply("job-1", image=value("x"))
    workload = await runai.until_workload("job-1")
    await runai.store.update(
        replace(workload, spec=replace(workload.spec, active=False, description="mine")), seen=workload
    )

    runai.apply("job-1", image=value("y"))

    updated = await runai.until_workload("job-1", lambda workload: workload.spec.image == "y")
    assert (updated.spec.active, updated.spec.description) == (False, "mine")


async def test_invalid_values(runai: RunaiKinds) -> None:
    """Faults are in the status, a condition and an event, with their path; no workload is created."""
    runai.apply("bad", gpu=value("1.5"), image=value("x"))

    status = await runai.until_status("bad", phase="Invalid")

    message = "spec.gpu.value: must be a whole number of GPUs, or a fraction of one below 1, not 1.5"
    assert (status["message"], condition(status, "Accepted")) == (message, ("False", message))
    assert await runai.workload("bad") is None
    events = (await runai.store.list(Event, runai.namespace)).items
    assert [(event.reason, event.message, event.involved_object.name) for event in events] == [
        ("Invalid", message, "bad")
    ]


async def test_corrected_manifest(runai: RunaiKinds) -> None:
    """A corrected manifest creates its workload."""
    runai.apply("late", gpu=value("1.5"), image=value("x"))
    await runai.until_status("late", phase="Invalid")

    runai.apply("late", gpu=value("1"), image=value("x"))

    await runai.until_workload("late")
    status = await runai.until_status("late", phase="Creating")
    assert condition(status, "Accepted")[0] == "True"


async def test_invalid_change_keeps_the_workload(runai: RunaiKinds) -> None:
    """The workload stays as it is; the status reports what is wrong with the change."""
    runai.apply("job-1", gpu=value("1"), image=value("x"))
    await runai.until_workload("job-1")

    runai.apply("job-1", gpu=value("lots"), image=value("x"))

    status = await runai.until_status("job-1", reason="Invalid")
    assert (status["phase"], condition(status, "Accepted")[0]) == ("Creating", "False")
    assert (await runai.until_workload("job-1")).spec.compute.gpu == 1000


async def test_unknown_fields(runai: RunaiKinds) -> None:
    """The API server keeps them, and the status reports that they have no effect."""
    runai.apply("job-1", image=value("x"), colour=value("red"))

    await runai.until_workload("job-1")

    status = await runai.until_status("job-1", phase="Creating")
    assert condition(status, "Complete") == (
        "False", "spec.colour: is an unknown field and has no effect; remove it",
    )  # fmt: skip
    kept = (await runai.store.driver.get(TRAINING, "job-1", runai.namespace)).data["spec"]
    assert kept["colour"] == {"value": "red"}


async def test_policies_apply(runai: RunaiKinds) -> None:
    """A manifest that a policy forbids is refused with the policy's message."""
    values = {"rules": {"compute.gpu": {"max": 1}}}
    policy = decode(Policy, {"metadata": {"name": "small", "namespace": runai.namespace}, "spec": values})
    await runai.store.create(policy)

    runai.apply("big", gpu=value("8"), image=value("x"))

    status = await runai.until_status("big", phase="Invalid")
    assert "spec.gpu.value" in status["message"]
    assert await runai.workload("big") is None


async def test_existing_workload_of_the_name(runai: RunaiKinds) -> None:
    """A workload that was not created from the manifest is left alone."""
    other = decode(Workload, {"metadata": {"name": "job-1", "namespace": runai.namespace}, "spec": {"image": "mine"}})
    await runai.store.create(other)

    runai.apply("job-1", image=value("x"))

    await runai.until_status("job-1", phase="Invalid", reason="NameTaken")
    assert (await runai.until_workload("job-1")).spec.image == "mine"


async def test_deleted_workload_is_not_recreated(runai: RunaiKinds) -> None:
    """Only a change of the manifest creates it again."""
    runai.apply("job-1", image=value("x"))
    workload = await runai.until_workload("job-1")
    await runai.until_status("job-1", workload="job-1")
    await runai.store.delete(workload)

    await runai.until_status("job-1", phase="Deleted")
    assert await runai.workload("job-1") is None
    runai.apply("job-1", image=value("y"))

    assert (await runai.until_workload("job-1")).metadata.uid != workload.metadata.uid


async def test_workload_is_deleted_with_its_manifest(runai: RunaiKinds) -> None:
    """kubectl delete deletes both."""
    runai.apply("job-1", image=value("x"))
    await runai.until_workload("job-1")

    runai.kubectl("delete", "trainingworkload", "job-1")

    await runai.until_gone("job-1")


async def test_catches_up_after_a_restart(cluster_with_kinds: Cluster, namespace: str) -> None:
    """Changes workload while no controller ran are applied at the next start, to the same workload."""
    async with KubernetesDriver(kubeconfig.load([cluster_with_kinds.kubeconfig])) as driver:
        await install(driver, definitions())
        runai = RunaiKinds(cluster_with_kinds, Store(driver), namespace)
        runai.apply("job-1", image=value("x"))
        async with running_controllers(driver):
            workload = await runai.until_workload("job-1")
        runai.apply("job-1", image=value("y"))
        async with running_controllers(driver):
            updated = await runai.until_workload("job-1", lambda workload: workload.spec.image == "y")

    assert updated.metadata.uid == workload.metadata.uid


async def test_definitions_have_descriptions(runai: RunaiKinds) -> None:
    """kubectl explain names the Workload's field."""
    assert "spec.compute.gpu" in runai.kubectl("explain", "trainingworkload.spec.gpu")
    assert yaml.safe_load(runai.kubectl("get", "trainingworkloads,interactiveworkloads", "-o", "yaml"))["items"] == []


async def test_translated_spec_annotation(runai: RunaiKinds) -> None:
    """An annotation of the workload holds the translated spec, so that changes are known after a restart."""
    runai.apply("job-1", image=value("x"))
    workload = await runai.until_workload("job-1")
    assert json.loads(workload.metadata.annotations[labels.TRANSLATED_SPEC]) == {"image": "x", "type": "training"}
