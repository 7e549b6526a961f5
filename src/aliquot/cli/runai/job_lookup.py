"""Finds the project of a command, and the jobs and pods in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aliquot import labels
from aliquot.api import KINDS, Pod, Project, Workload
from aliquot.cli.context import CommandContext
from aliquot.cli.object_refs import project_not_found
from aliquot.errors import Denied, Invalid, NotFound
from aliquot.labels import namespace_of
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store

JOB_KIND_NAMES = ("job", "jobs", "workload", "workloads", "wl")


def names_kind(argument: str) -> bool:
    """Whether an argument names a kind, as `project` and `project/team-a` do."""
    try:
        KINDS.named(argument.partition("/")[0])
    except Invalid:
        return False
    return True


@dataclass(frozen=True)
class ProjectScope:
    """A project and the namespace that holds its jobs."""

    project: str
    namespace: str


async def resolve_project(context: CommandContext, driver: StoreDriver, project: str) -> ProjectScope:
    """The named project, or else the user's default project; `NotFound` when it does not exist."""
    name = project or context.settings.project
    if not name:
        raise Invalid("no project is set: run `runai config project NAME`, or give -p NAME")
    try:
        return _scope(await Store(driver).get(Project, name))
    except NotFound:
        raise project_not_found(name) from None
    except Denied:
        return ProjectScope(name, namespace_of(name))  # the user may be allowed to see the jobs and not the project


def _scope(project: Project) -> ProjectScope:
    name = project.metadata.name
    return ProjectScope(name, project.status.namespace or project.spec.namespace or namespace_of(name))


async def projects_by_namespace(driver: StoreDriver) -> dict[str, str]:
    """The names of all projects by namespace; empty when the user may not list projects."""
    try:
        projects = (await Store(driver).list(Project)).items
    except Denied:
        return {}
    return {scope.namespace: scope.project for scope in map(_scope, projects)}


def project_of_namespace(namespace: str, projects: dict[str, str]) -> str:
    """The project of a namespace, from `projects_by_namespace` or else from the namespace's name."""
    return projects.get(namespace) or namespace.removeprefix(labels.PROJECT_NAMESPACE_PREFIX)


async def get_job(driver: StoreDriver, scope: ProjectScope, name: str) -> Workload:
    try:
        return await Store(driver).get(Workload, name, scope.namespace)
    except NotFound:
        raise job_not_found(scope, name) from None


def job_not_found(scope: ProjectScope, name: str) -> NotFound:
    return NotFound(f"job {name!r} does not exist in project {scope.project!r}", hint="`runai list -A` shows all jobs")


async def list_pods(driver: StoreDriver, namespace: str | None) -> list[Pod]:
    return sorted((await Store(driver).list(Pod, namespace)).items, key=lambda pod: pod.metadata.name)


def pods_of_job(workload: Workload, pods: Iterable[Pod]) -> list[Pod]:
    """The pods of a job, by owner, or by label for a pod without owners."""
    meta = workload.metadata
    return [
        pod
        for pod in pods
        if pod.metadata.namespace == meta.namespace
        and (
            any(owner.uid == meta.uid for owner in pod.metadata.owners)
            if pod.metadata.owners
            else pod.metadata.labels.get(labels.WORKLOAD) == meta.name
        )
    ]


def select_pod(workload: Workload, pods: Sequence[Pod], pod_name: str = "") -> Pod:
    """The named pod of a job, or else the first one. Accepts the short pod names of older versions too."""
    name = workload.metadata.name
    if not pod_name:
        if pods:
            return pods[0]
        raise NotFound(f"job {name!r} has no pod: it has not started, or was stopped", hint=_describe_hint(workload))
    for pod in pods:
        if pod_name in (pod.metadata.name, pod.metadata.name.removesuffix("-0")):
            return pod
    existing = ", ".join(pod.metadata.name for pod in pods) or "none"
    raise NotFound(f"job {name!r} has no pod {pod_name!r}; it has: {existing}")


def _describe_hint(workload: Workload) -> str:
    return f"`runai describe job {workload.metadata.name}` says why"
