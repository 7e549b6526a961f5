"""Which project a command is about, and the jobs and pods in it."""

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


def names_kind(word: str) -> bool:
    """Whether a word names a kind of object: `project`, or `project/team-a`."""
    try:
        KINDS.named(word.partition("/")[0])
    except Invalid:
        return False
    return True


@dataclass(frozen=True)
class ProjectScope:
    """A project and the namespace that holds its jobs."""

    project: str
    namespace: str


async def resolve_project(context: CommandContext, driver: StoreDriver, asked: str) -> ProjectScope:
    """The project that was asked for, or the user's default; it must be there."""
    name = asked or context.settings.project
    if not name:
        raise Invalid("no project is set: run `runai config project NAME`, or give -p NAME")
    try:
        return _scope(await Store(driver).get(Project, name))
    except NotFound:
        raise project_not_found(name) from None
    except Denied:
        return ProjectScope(name, namespace_of(name))  # its jobs may be ours to see even so


def _scope(project: Project) -> ProjectScope:
    name = project.metadata.name
    return ProjectScope(name, project.status.namespace or project.spec.namespace or namespace_of(name))


async def projects_by_namespace(driver: StoreDriver) -> dict[str, str]:
    """For listings over all projects; one that may not be read is named after its namespace."""
    try:
        found = (await Store(driver).list(Project)).items
    except Denied:
        return {}
    return {scope.namespace: scope.project for scope in map(_scope, found)}


def project_of_namespace(namespace: str, known: dict[str, str]) -> str:
    return known.get(namespace) or namespace.removeprefix(labels.PROJECT_NAMESPACE_PREFIX)


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
    """Those that are attempts to run it: by owner, or by label where somebody else made them."""
    place = workload.metadata
    return [
        pod
        for pod in pods
        if pod.metadata.namespace == place.namespace
        and (
            any(owner.uid == place.uid for owner in pod.metadata.owners)
            if pod.metadata.owners
            else pod.metadata.labels.get(labels.WORKLOAD) == place.name
        )
    ]


def select_pod(workload: Workload, pods: Sequence[Pod], asked: str = "") -> Pod:
    """The pod that is meant: the one named (the short name of older versions too), else the first."""
    name = workload.metadata.name
    if not asked:
        if pods:
            return pods[0]
        raise NotFound(f"job {name!r} has no pod: it has not started, or was stopped", hint=_see(workload))
    for pod in pods:
        if asked in (pod.metadata.name, pod.metadata.name.removesuffix("-0")):
            return pod
    there = ", ".join(pod.metadata.name for pod in pods) or "none"
    raise NotFound(f"job {name!r} has no pod {asked!r}; it has: {there}")


def _see(workload: Workload) -> str:
    return f"`runai describe job {workload.metadata.name}` says why"
