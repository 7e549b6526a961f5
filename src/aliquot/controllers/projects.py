"""The project controller: creates each project's namespace, and its status says whether workloads may be submitted.

The namespace is `runai-<project>`, or the one that the project names. An existing namespace is used only if it has the
project's label: an administrator assigns namespaces, this controller does not. Deleting a project keeps its namespace
and everything in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.api import Metadata, Namespace, Project
from aliquot.controllers.runtime.workqueue import Controller
from aliquot.errors import Exists, NotFound
from aliquot.labels import (
    PLATFORM_NAMESPACES,
    PROJECT,
    PROJECT_NAMESPACE_PREFIX,
    namespace_of,
    project_of,
)
from aliquot.store.informer import Informer, Key
from aliquot.store.typed_store import Store


@dataclass(frozen=True, slots=True)
class Decision:
    create_namespace: str = ""
    ready: bool = False
    message: str = ""


def decide(project: Project, namespace: Namespace | None) -> Decision:
    """Whether to create the project's namespace, and what the project's status shows."""
    name = wanted_namespace(project)
    if namespace is None and _is_reserved(project, name):
        return Decision(message=f"namespace {name} is reserved for the platform or for the project of that name")
    if namespace is None:
        return Decision(create_namespace=name, ready=True)
    if namespace.metadata.deleted is not None:
        return Decision(message=f"namespace {name} is being deleted")
    owner = project_of(namespace.metadata.labels)
    if owner == project.metadata.name:
        return Decision(ready=True)
    if owner:
        return Decision(message=f"namespace {name} belongs to project {owner}")
    return Decision(
        message=f"namespace {name} has no owner; to give it to this project label it {PROJECT}={project.metadata.name}"
    )


def wanted_namespace(project: Project) -> str:
    return project.spec.namespace or namespace_of(project.metadata.name)


def _is_reserved(project: Project, namespace: str) -> bool:
    """Whether the name belongs to the platform or to another project. That project, when it is created, must not find
    the namespace taken and accessible to others."""
    own = namespace == namespace_of(project.metadata.name)
    return namespace in PLATFORM_NAMESPACES or (namespace.startswith(PROJECT_NAMESPACE_PREFIX) and not own)


class ProjectReconciler:
    def __init__(self, store: Store, projects: Informer[Project], namespaces: Informer[Namespace]) -> None:
        self._store = store
        self._projects = projects
        self.controller = Controller("projects", self._reconcile)
        self.controller.watch(projects)
        namespaces.listen(lambda key, old, new: self._enqueue_projects(key[1]))

    def _enqueue_projects(self, namespace: str) -> None:
        for project in self._projects:
            if wanted_namespace(project) == namespace:
                self.controller.enqueue(("", project.metadata.name))

    async def _reconcile(self, key: Key) -> None:
        try:
            project = await self._store.get(Project, key[1])
        except NotFound:
            return
        if project.metadata.deleted is not None:
            return
        decision = decide(project, await self._namespace(wanted_namespace(project)))
        if decision.create_namespace:
            await self._create(decision.create_namespace, project.metadata.name)
        status = replace(
            project.status,
            phase="Ready" if decision.ready else "Failed",
            message=decision.message,
            namespace=wanted_namespace(project) if decision.ready else "",
            observed_generation=project.metadata.generation,
        )
        if status != project.status:
            await self._store.update_status(replace(project, status=status), seen=project)

    async def _namespace(self, name: str) -> Namespace | None:
        try:
            return await self._store.get(Namespace, name)
        except NotFound:
            return None

    async def _create(self, name: str, project: str) -> None:
        try:
            await self._store.create(Namespace(metadata=Metadata(name=name, labels={PROJECT: project})))
        except Exists:
            # Another replica has just created it; the next reconcile checks whose it is.
            self.controller.enqueue(("", project))
