"""Run:ai's YAML on a real API server: kubectl applies it, a workload comes of it, and the object says how it fares."""

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
from support.stores.running import running, until

pytestmark = pytest.mark.kube


class World:
    def __init__(self, cluster: Cluster, store: Store, namespace: str) -> None:
        self._cluster, self.store, self.namespace = cluster, store, namespace

    def apply(self, name: str, kind: str = "TrainingWorkload", /, **spec: Any) -> str:
        manifest = {
            "apiVersion": "run.ai/v2alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec,
        }  # fmt: skip
        return self._cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def kubectl(self, *words: str) -> str:
        return self._cluster.kubectl("-n", self.namespace, *words)

    async def workload(self, name: str) -> Workload | None:
        try:
            return await self.store.get(Workload, name, self.namespace)
        except NotFound:
            return None

    async def until_workload(self, name: str, holds: Callable[[Workload], bool] = lambda found: True) -> Workload:
        async def so() -> bool:
            found = await self.workload(name)
            return found is not None and holds(found)

        await until(so)
        found = await self.workload(name)
        assert found is not None
        return found

    async def until_gone(self, name: str) -> None:
        async def so() -> bool:
            return await self.workload(name) is None

        await until(so)

    async def until_status(self, name: str, kind: Any = TRAINING, **wanted: Any) -> Json:
        last: list[Json] = [{}]

        async def so() -> bool:
            last[0] = (await self.store.driver.get(kind, name, self.namespace)).data.get("status") or {}
            return all(last[0].get(word) == value for word, value in wanted.items())

        await until(so)
        return last[0]


def condition(status: Json, name: str) -> tuple[str, str]:
    found = next(one for one in status["conditions"] if one["type"] == name)
    return found["status"], found.get("message", "")


@pytest_asyncio.fixture
async def world(cluster_with_kinds: Cluster, namespace: str) -> AsyncIterator[World]:
    """Both loops on the cluster, with a namespace for one test."""
    async with KubernetesDriver(kubeconfig.load([cluster_with_kinds.kubeconfig])) as driver:
        await install(driver, definitions())
        async with living(driver):
            yield World(cluster_with_kinds, Store(driver), namespace)


def living(driver: KubernetesDriver) -> Any:
    informers = Informers(driver)
    admission, workloads = WorkloadAdmission(driver, informers), informers.of(Workload)
    loops = [RunaiWorkloadController(Store(driver), kind, admission, workloads) for kind in RUNAI_KINDS]
    work = [informer.run() for informer in informers]
    return running(*work, *(loop.objects.run() for loop in loops), *(loop.controller.run() for loop in loops))


def value(given: Any) -> Json:
    return {"value": given}


async def test_manifest_becomes_a_workload(world: World) -> None:
    """kubectl applies it unchanged, and the workload of its name belongs to it and says the same."""
    world.apply("job-1", gpu=value("0.5"), image=value("gcr.io/run-ai-demo/quickstart"), name=value("job-1"))

    made = await world.until_workload("job-1")

    assert (made.spec.type, made.spec.image, made.spec.compute.gpu) == (
        "training",
        "gcr.io/run-ai-demo/quickstart",
        500,
    )
    assert [(owner.kind, owner.name) for owner in made.metadata.owners] == [("TrainingWorkload", "job-1")]
    status = await world.until_status("job-1", workload="job-1", phase="Creating")
    assert (condition(status, "Accepted")[0], condition(status, "Complete")) == ("True", ("True", ""))


async def test_interactive_manifest(world: World) -> None:
    """The other kind is interactive work."""
    world.apply("nb", "InteractiveWorkload", image=value("jupyter/base-notebook"))

    assert (await world.until_workload("nb")).spec.type == "interactive"
    await world.until_status("nb", INTERACTIVE, workload="nb")


async def test_status_follows_the_workload(world: World) -> None:
    """Phase, message and nodes are those of the workload, also in the columns of kubectl."""
    world.apply("job-1", image=value("x"), gpu=value("2"), username=value("frej"))
    made = await world.until_workload("job-1")
    await world.until_status("job-1", workload="job-1")

    said = WorkloadStatus(phase="Running", nodes=("dgx1-1",), message="all is well")
    await world.store.update_status(replace(made, status=said), seen=made)

    await world.until_status("job-1", phase="Running", nodes=["dgx1-1"], message="all is well")
    shown = world.kubectl("get", "trainingworkloads", "--no-headers")
    assert shown.split()[:4] == ["job-1", "Running", "2", "frej"]


async def test_active_false_suspends(world: World) -> None:
    """`spec.active.value: false` stops the workload, true starts it again."""
    world.apply("job-1", image=value("x"))
    await world.until_workload("job-1", lambda found: found.spec.active)

    world.apply("job-1", image=value("x"), active=value(False))
    await world.until_workload("job-1", lambda found: not found.spec.active)

    world.apply("job-1", image=value("x"), active=value(True))
    await world.until_workload("job-1", lambda found: found.spec.active)


async def test_only_what_changed_is_changed(world: World) -> None:
    """A workload that somebody suspended in another way stays so when another line of the manifest changes."""
    world.apply("job-1", image=value("x"))
    made = await world.until_workload("job-1")
    await world.store.update(replace(made, spec=replace(made.spec, active=False, description="mine")), seen=made)

    world.apply("job-1", image=value("y"))

    found = await world.until_workload("job-1", lambda found: found.spec.image == "y")
    assert (found.spec.active, found.spec.description) == (False, "mine")


async def test_wrong_values_are_told(world: World) -> None:
    """In the status, as a condition and as an event, each with its path; no workload is made of it."""
    world.apply("bad", gpu=value("1.5"), image=value("x"))

    status = await world.until_status("bad", phase="Invalid")

    words = "spec.gpu.value: must be a whole number of GPUs, or a fraction of one below 1, not 1.5"
    assert (status["message"], condition(status, "Accepted")) == (words, ("False", words))
    assert await world.workload("bad") is None
    events = (await world.store.list(Event, world.namespace)).items
    assert [(one.reason, one.message, one.involved_object.name) for one in events] == [("Invalid", words, "bad")]


async def test_corrected_manifest_is_taken(world: World) -> None:
    """What was wrong is forgotten as soon as it is right."""
    world.apply("late", gpu=value("1.5"), image=value("x"))
    await world.until_status("late", phase="Invalid")

    world.apply("late", gpu=value("1"), image=value("x"))

    await world.until_workload("late")
    status = await world.until_status("late", phase="Creating")
    assert condition(status, "Accepted")[0] == "True"


async def test_wrong_change_leaves_the_workload(world: World) -> None:
    """What runs goes on as it was; the status says what is wrong with the change."""
    world.apply("job-1", gpu=value("1"), image=value("x"))
    await world.until_workload("job-1")

    world.apply("job-1", gpu=value("lots"), image=value("x"))

    status = await world.until_status("job-1", reason="Invalid")
    assert (status["phase"], condition(status, "Accepted")[0]) == ("Creating", "False")
    assert (await world.until_workload("job-1")).spec.compute.gpu == 1000


async def test_unknown_fields_are_kept_and_told(world: World) -> None:
    """The API server keeps them, and the object says that they do nothing."""
    world.apply("job-1", image=value("x"), colour=value("red"))

    await world.until_workload("job-1")

    status = await world.until_status("job-1", phase="Creating")
    assert condition(status, "Complete") == (
        "False", "spec.colour: is an unknown field and has no effect; remove it",
    )  # fmt: skip
    kept = (await world.store.driver.get(TRAINING, "job-1", world.namespace)).data["spec"]
    assert kept["colour"] == {"value": "red"}


async def test_policies_hold_here_too(world: World) -> None:
    """A manifest that a policy forbids is refused with the policy's words."""
    values = {"rules": {"compute.gpu": {"max": 1}}}
    policy = decode(Policy, {"metadata": {"name": "small", "namespace": world.namespace}, "spec": values})
    await world.store.create(policy)

    world.apply("big", gpu=value("8"), image=value("x"))

    status = await world.until_status("big", phase="Invalid")
    assert "spec.gpu.value" in status["message"]
    assert await world.workload("big") is None


async def test_name_that_is_taken(world: World) -> None:
    """A workload that somebody made otherwise is not touched."""
    other = decode(Workload, {"metadata": {"name": "job-1", "namespace": world.namespace}, "spec": {"image": "mine"}})
    await world.store.create(other)

    world.apply("job-1", image=value("x"))

    await world.until_status("job-1", phase="Invalid", reason="NameTaken")
    assert (await world.until_workload("job-1")).spec.image == "mine"


async def test_deleted_workload_does_not_come_back(world: World) -> None:
    """Somebody deleted it, or its time was over: only a change of the manifest runs it again."""
    world.apply("job-1", image=value("x"))
    made = await world.until_workload("job-1")
    await world.until_status("job-1", workload="job-1")
    await world.store.delete(made)

    await world.until_status("job-1", phase="Deleted")
    assert await world.workload("job-1") is None
    world.apply("job-1", image=value("y"))

    assert (await world.until_workload("job-1")).metadata.uid != made.metadata.uid


async def test_workload_goes_with_its_manifest(world: World) -> None:
    """kubectl delete takes both."""
    world.apply("job-1", image=value("x"))
    await world.until_workload("job-1")

    world.kubectl("delete", "trainingworkload", "job-1")

    await world.until_gone("job-1")


async def test_loop_that_was_away_catches_up(cluster_with_kinds: Cluster, namespace: str) -> None:
    """What was changed while no loop ran is found at the next start, and what was made is found again."""
    async with KubernetesDriver(kubeconfig.load([cluster_with_kinds.kubeconfig])) as driver:
        await install(driver, definitions())
        world = World(cluster_with_kinds, Store(driver), namespace)
        world.apply("job-1", image=value("x"))
        async with living(driver):
            made = await world.until_workload("job-1")
        world.apply("job-1", image=value("y"))
        async with living(driver):
            found = await world.until_workload("job-1", lambda found: found.spec.image == "y")

    assert found.metadata.uid == made.metadata.uid


async def test_definitions_explain_themselves(world: World) -> None:
    """kubectl explain says where a field goes."""
    assert "spec.compute.gpu" in world.kubectl("explain", "trainingworkload.spec.gpu")
    assert yaml.safe_load(world.kubectl("get", "trainingworkloads,interactiveworkloads", "-o", "yaml"))["items"] == []


async def test_marks_of_a_manifest(world: World) -> None:
    """The workload keeps what it was made from as an annotation: a restart knows then what has changed since."""
    world.apply("job-1", image=value("x"))
    made = await world.until_workload("job-1")
    assert json.loads(made.metadata.annotations[labels.TRANSLATED_SPEC]) == {"image": "x", "type": "training"}
