"""The project controller creates namespaces and takes none that is not labelled for the project."""

from __future__ import annotations

from functools import partial

import pytest

from aliquot.api import Metadata, Namespace, Project
from aliquot.controllers.projects import Decision, ProjectReconciler, decide
from aliquot.labels import PROJECT
from aliquot.store.informer import typed
from aliquot.store.typed_store import Store
from support.objects import project
from support.stores.namespace import NAMESPACE, StoreNamespace, document
from support.stores.running import running
from support.waiting import eventually


def namespace(name: str = "runai-team-a", **metadata: object) -> Namespace:
    return Namespace(metadata=Metadata(name=name, **metadata))  # type: ignore[arg-type]


def test_new_project_gets_a_namespace() -> None:
    """A project without a namespace gets one."""
    assert decide(project(), None) == Decision(create_namespace="runai-team-a", ready=True)


def test_own_namespace_is_used() -> None:
    """A project whose namespace exists and has its label is ready."""
    assert decide(project(), namespace(labels={PROJECT: "team-a"})) == Decision(ready=True)


@pytest.mark.parametrize("key", ["runai/queue", "kai.scheduler/queue"])
def test_labels_of_other_systems_count(key: str) -> None:
    """A namespace that has the label of another system for the project is used too."""
    assert decide(project(), namespace(labels={key: "team-a"})).ready


def test_namespace_of_another_project() -> None:
    """A namespace of another project is never used."""
    decision = decide(project(), namespace(labels={PROJECT: "team-b"}))
    assert not decision.ready
    assert "belongs to project team-b" in decision.message


def test_unlabelled_namespace() -> None:
    """An existing namespace without the label is not used: labelling it is an administrator's decision."""
    decision = decide(project(namespace="kube-system"), namespace("kube-system"))
    assert not decision.ready
    assert "label it aliquot.dev/project=team-a" in decision.message


def test_namespace_being_deleted() -> None:
    """A project whose namespace is being deleted is not ready."""
    assert "being deleted" in decide(project(), namespace(labels={PROJECT: "team-a"}, deleted=1.0)).message


def test_named_namespace() -> None:
    """A project may name its namespace."""
    assert decide(project(namespace="team-ns"), None).create_namespace == "team-ns"


async def test_projects_become_ready(embedded: StoreNamespace) -> None:
    """New projects become ready, and their namespaces get their label."""
    store = Store(embedded.driver)
    projects, namespaces = typed(embedded.driver, Project), typed(embedded.driver, Namespace)
    controller = ProjectReconciler(store, projects, namespaces).controller
    async with running(projects.run(), namespaces.run(), controller.run()):
        for name in ("team-a", "team-b"):
            await store.create(project(name))
        for name in ("team-a", "team-b"):
            await eventually(partial(is_ready, store, name))
            created = await store.get(Namespace, f"runai-{name}")
            assert created.metadata.labels == {PROJECT: name}


async def test_a_failed_project_recovers(embedded: StoreNamespace) -> None:
    """A project that failed becomes ready once its namespace gets its label."""
    store = Store(embedded.driver)
    await embedded.driver.create(NAMESPACE, document(NAMESPACE, "runai-team-a"))
    projects, namespaces = typed(embedded.driver, Project), typed(embedded.driver, Namespace)
    controller = ProjectReconciler(store, projects, namespaces).controller
    async with running(projects.run(), namespaces.run(), controller.run()):
        await store.create(project())
        await eventually(lambda: has_phase(store, "team-a", "Failed"))
        await embedded.driver.patch(NAMESPACE, "runai-team-a", "", {"metadata": {"labels": {PROJECT: "team-a"}}})
        await eventually(lambda: is_ready(store, "team-a"))


async def test_running_twice_changes_nothing(embedded: StoreNamespace) -> None:
    """Reconciling again writes nothing."""
    store = Store(embedded.driver)
    await store.create(project())
    for _ in range(2):
        projects, namespaces = typed(embedded.driver, Project), typed(embedded.driver, Namespace)
        controller = ProjectReconciler(store, projects, namespaces).controller
        async with running(projects.run(), namespaces.run(), controller.run()):
            await eventually(lambda: is_ready(store, "team-a"))
    before = await store.get(Project, "team-a")
    projects, namespaces = typed(embedded.driver, Project), typed(embedded.driver, Namespace)
    again = ProjectReconciler(store, projects, namespaces)
    await again._reconcile(("", "team-a"))
    assert await store.get(Project, "team-a") == before


async def is_ready(store: Store, name: str) -> bool:
    return await has_phase(store, name, "Ready")


async def has_phase(store: Store, name: str, phase: str) -> bool:
    return (await store.get(Project, name)).status.phase == phase
