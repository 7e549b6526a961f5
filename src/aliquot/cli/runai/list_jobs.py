"""`list`: jobs in both classic layouts, and the tables of everything else a researcher looks at."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from aliquot import labels
from aliquot.api import KINDS, Pod, Template, Workload, to_json
from aliquot.cli import output
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.get import output_options
from aliquot.cli.projects import list_queues
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.job_lookup import (
    ProjectScope,
    list_pods,
    pods_of_job,
    project_of_namespace,
    projects_by_namespace,
    resolve_project,
)
from aliquot.cli.runai.nodes import list_nodes
from aliquot.cli.runai.program import RunaiCommand, project_option
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store


class JobRow(NamedTuple):
    """A workload with what its row needs."""

    workload: Workload
    pods: list[Pod]
    project: str
    word: str

    @property
    def created(self) -> float:
        return self.workload.metadata.created or 0.0


Cell = Callable[[JobRow, float], str]
_FIRST: dict[str, Cell] = {
    "NAME": lambda job, now: job.workload.metadata.name,
    "STATUS": lambda job, now: job.word,
    "AGE": lambda job, now: output.age(now - job.created),
    "NODE": lambda job, now: job_columns.node_cell(job.workload, job.pods, job.word),
    "IMAGE": lambda job, now: job.workload.spec.image or "",
    "TYPE": lambda job, now: job_columns.TYPE_LABELS[job.workload.spec.type],
    "PROJECT": lambda job, now: job.project,
    "USER": lambda job, now: job.workload.spec.user or job.workload.spec.subject,
}
LAYOUT_2020: dict[str, Cell] = {
    **_FIRST,
    "GPUs": lambda job, now: job_columns.short_gpus(job.workload),
    "CREATED BY CLI": lambda job, now: created_by_cli(job.workload),
    "SERVICE URL(S)": lambda job, now: job_columns.urls(job.workload),
}
LAYOUT_2023: dict[str, Cell] = {
    **_FIRST,
    "GPUs Allocated (Requested)": lambda job, now: job_columns.gpu_cell(job.workload, job.word),
    "PODs Running (Pending)": lambda job, now: pod_cell(job),
    "SERVICE URL(S)": lambda job, now: job_columns.urls(job.workload),
}


def created_by_cli(workload: Workload) -> str:
    return "true" if workload.metadata.annotations.get(labels.CREATED_BY) == "cli" else "false"


def pod_cell(job: JobRow) -> str:
    counts = job.workload.status.pods
    running = job_columns.running_pods(job.pods) if job.pods else counts.running
    pending = job_columns.pending_pods(job.pods) if job.pods else counts.pending
    return f"{running} ({pending})"


def table(jobs: Sequence[JobRow], layout: dict[str, Cell], now: float, *, headers: bool = True) -> str:
    rows = [[output.printable(cell(job, now)) for cell in layout.values()] for job in jobs]
    return output.table(list(layout), rows, headers=headers)


def sort_2020(jobs: Sequence[JobRow]) -> list[JobRow]:
    """Pending first, then the newest."""
    return sorted(jobs, key=lambda job: (job.word == "Pending", job.created, _counted(job)), reverse=True)


def _counted(job: JobRow) -> str:
    """A name to compare by. Kubernetes knows the second of a creation; within one, numbers tell what came later."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), job.workload.metadata.name)


def sort_2023(jobs: Sequence[JobRow]) -> list[JobRow]:
    return sorted(jobs, key=lambda job: (job.workload.metadata.name, job.project))


async def read_jobs(driver: StoreDriver, scope: ProjectScope | None) -> list[JobRow]:
    """The jobs of a project, or of all."""
    namespace = scope.namespace if scope else None
    workloads = (await Store(driver).list(Workload, namespace)).items
    pods = await list_pods(driver, namespace)
    known = {scope.namespace: scope.project} if scope else await projects_by_namespace(driver)
    by_namespace: dict[str, list[Pod]] = {}
    for pod in pods:
        by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
    found = []
    for workload in workloads:
        own = pods_of_job(workload, by_namespace.get(workload.metadata.namespace, ()))
        project = project_of_namespace(workload.metadata.namespace, known)
        found.append(JobRow(workload, own, project, job_columns.job_status(workload, own)))
    return found


def _jobs(
    context: CommandContext, project: str, all_projects: bool, output_format: str, *, classic: bool, headers: bool
) -> int:
    async def work(driver: StoreDriver) -> tuple[ProjectScope | None, list[JobRow]]:
        scope = None if all_projects else await resolve_project(context, driver, project)
        return scope, await read_jobs(driver, scope)

    scope, jobs = context.run(work)
    jobs = sort_2020(jobs) if classic else sort_2023(jobs)
    if output_format in ("json", "yaml"):
        items = [to_json(job.workload) for job in jobs]
        click.echo(output.dump({"apiVersion": "v1", "kind": "List", "items": items}, output_format))
        return 0
    if output_format == "name":
        for job in jobs:
            click.echo(job.workload.metadata.name)
        return 0
    if scope and headers:
        click.echo(f"Showing jobs for project {scope.project}")
    click.echo(table(jobs, LAYOUT_2020 if classic else LAYOUT_2023, time.time(), headers=headers))
    return 0


@click.command("list", cls=RunaiCommand)
@click.argument("arguments", nargs=-1, metavar="[jobs|projects|nodes|clusters|templates|KIND]")
@click.option("-A", "--all-projects", "--all", "all_projects", is_flag=True, help="Jobs of all projects.")
@output_options
@project_option
def list_(arguments: tuple[str, ...], all_projects: bool, output_format: str, no_headers: bool, project: str) -> int:
    """List jobs; or other things, by their word."""
    context, headers = command_context(), not no_headers
    what = arguments[0].lower() if arguments else ""
    if what in ("", "jobs", "job"):
        if len(arguments) > 1:
            raise click.UsageError(
                f"unexpected word {arguments[1]!r}; `runai describe job {arguments[1]}` shows one job"
            )
        return _jobs(context, project, all_projects, output_format, classic=not what, headers=headers)
    if what in ("nodes", "node"):
        return list_nodes(context, arguments[1:], output_format, headers=headers)
    if what in ("projects", "project", "departments", "department") and len(arguments) == 1:
        return list_queues(context, KINDS.named(what), output_format, headers=headers)
    if what in ("clusters", "cluster"):
        return list_clusters(context, output_format, headers=headers)
    if what in ("templates", "template"):
        return list_templates(context, project, output_format, headers=headers)
    from aliquot.cli.context import NamespaceScope
    from aliquot.cli.get import Selector, print_objects

    print_objects(
        context,
        arguments[0],
        arguments[1:],
        NamespaceScope(project=project, all_namespaces=all_projects),
        Selector(),
        output_format,
        headers=headers,
    )
    return 0


def list_clusters(context: CommandContext, output_format: str, *, headers: bool) -> int:
    """One server is one cluster; the one that commands go to is the current one."""

    async def work(driver: StoreDriver) -> str:
        await driver.check()
        return "Ready"

    row = {"name": "default", "url": context.connection.url, "status": context.run(work), "current": True}
    if output_format in ("json", "yaml"):
        click.echo(output.dump([row], output_format))
    else:
        cells = ["default (current)", context.connection.url, str(row["status"])]
        click.echo(output.table(["CLUSTER", "URL", "STATUS"], [cells], headers=headers))
    return 0


def list_templates(context: CommandContext, project: str, output_format: str, *, headers: bool) -> int:
    """Everybody's templates and those of the project."""

    async def work(driver: StoreDriver) -> list[Template]:
        places = [labels.SYSTEM_NAMESPACE]
        if project or context.settings.project:
            places.append((await resolve_project(context, driver, project)).namespace)
        return [each for place in places for each in (await Store(driver).list(Template, place)).items]

    found = sorted(context.run(work), key=lambda each: each.metadata.name)
    if output_format in ("json", "yaml"):
        click.echo(output.dump({"apiVersion": "v1", "kind": "List", "items": list(map(to_json, found))}, output_format))
        return 0
    rows = [[each.metadata.name, _described(each)] for each in found]
    click.echo(output.table(["NAME", "DESCRIPTION"], rows, headers=headers))
    return 0


def _described(template: Template) -> str:
    text = output.printable(template.spec.description)
    return f"{text} (default)".lstrip() if template.spec.default else text
