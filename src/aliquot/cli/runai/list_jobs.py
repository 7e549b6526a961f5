"""`list`: jobs in the layouts of 2020 and 2023, and nodes, projects, templates and clusters."""

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
    """A job with the values that its row shows."""

    workload: Workload
    pods: list[Pod]
    project: str
    status: str

    @property
    def created(self) -> float:
        return self.workload.metadata.created or 0.0


Cell = Callable[[JobRow, float], str]
_COMMON_COLUMNS: dict[str, Cell] = {
    "NAME": lambda job, now: job.workload.metadata.name,
    "STATUS": lambda job, now: job.status,
    "AGE": lambda job, now: output.age(now - job.created),
    "NODE": lambda job, now: job_columns.node_cell(job.workload, job.pods, job.status),
    "IMAGE": lambda job, now: job.workload.spec.image or "",
    "TYPE": lambda job, now: job_columns.TYPE_LABELS[job.workload.spec.type],
    "PROJECT": lambda job, now: job.project,
    "USER": lambda job, now: job.workload.spec.user or job.workload.spec.subject,
}
LAYOUT_2020: dict[str, Cell] = {
    **_COMMON_COLUMNS,
    "GPUs": lambda job, now: job_columns.short_gpus(job.workload),
    "CREATED BY CLI": lambda job, now: created_by_cli(job.workload),
    "SERVICE URL(S)": lambda job, now: job_columns.urls(job.workload),
}
LAYOUT_2023: dict[str, Cell] = {
    **_COMMON_COLUMNS,
    "GPUs Allocated (Requested)": lambda job, now: job_columns.gpu_cell(job.workload, job.status),
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
    """Pending jobs first, then the newest."""
    return sorted(jobs, key=lambda job: (job.status == "Pending", job.created, _sortable_name(job)), reverse=True)


def _sortable_name(job: JobRow) -> str:
    """The name with padded numbers, to order jobs of the same second: creation times have whole seconds."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), job.workload.metadata.name)


def sort_2023(jobs: Sequence[JobRow]) -> list[JobRow]:
    return sorted(jobs, key=lambda job: (job.workload.metadata.name, job.project))


async def read_jobs(driver: StoreDriver, scope: ProjectScope | None) -> list[JobRow]:
    """The jobs of a project; with None, of all projects."""
    namespace = scope.namespace if scope else None
    workloads = (await Store(driver).list(Workload, namespace)).items
    pods = await list_pods(driver, namespace)
    projects = {scope.namespace: scope.project} if scope else await projects_by_namespace(driver)
    pods_by_namespace: dict[str, list[Pod]] = {}
    for pod in pods:
        pods_by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
    rows = []
    for workload in workloads:
        job_pods = pods_of_job(workload, pods_by_namespace.get(workload.metadata.namespace, ()))
        project = project_of_namespace(workload.metadata.namespace, projects)
        rows.append(JobRow(workload, job_pods, project, job_columns.job_status(workload, job_pods)))
    return rows


def _list_jobs(
    context: CommandContext, project: str, all_projects: bool, output_format: str, *, classic: bool, headers: bool
) -> int:
    async def read(driver: StoreDriver) -> tuple[ProjectScope | None, list[JobRow]]:
        scope = None if all_projects else await resolve_project(context, driver, project)
        return scope, await read_jobs(driver, scope)

    scope, jobs = context.run(read)
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
@click.option("-A", "--all-projects", "--all", "all_projects", is_flag=True, help="List the jobs of all projects.")
@output_options
@project_option
def list_(arguments: tuple[str, ...], all_projects: bool, output_format: str, no_headers: bool, project: str) -> int:
    """List jobs, or objects of another kind."""
    context, headers = command_context(), not no_headers
    what = arguments[0].lower() if arguments else ""
    if what in ("", "jobs", "job"):
        if len(arguments) > 1:
            raise click.UsageError(
                f"unexpected argument {arguments[1]!r}; `runai describe job {arguments[1]}` shows one job"
            )
        return _list_jobs(context, project, all_projects, output_format, classic=not what, headers=headers)
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
    """Print the cluster of the server, which is the only one."""

    async def check(driver: StoreDriver) -> str:
        await driver.check()
        return "Ready"

    row = {"name": "default", "url": context.connection.url, "status": context.run(check), "current": True}
    if output_format in ("json", "yaml"):
        click.echo(output.dump([row], output_format))
    else:
        cells = ["default (current)", context.connection.url, str(row["status"])]
        click.echo(output.table(["CLUSTER", "URL", "STATUS"], [cells], headers=headers))
    return 0


def list_templates(context: CommandContext, project: str, output_format: str, *, headers: bool) -> int:
    """Print the templates of the whole cluster and those of the project."""

    async def read(driver: StoreDriver) -> list[Template]:
        namespaces = [labels.SYSTEM_NAMESPACE]
        if project or context.settings.project:
            namespaces.append((await resolve_project(context, driver, project)).namespace)
        return [item for name in namespaces for item in (await Store(driver).list(Template, name)).items]

    templates = sorted(context.run(read), key=lambda template: template.metadata.name)
    if output_format in ("json", "yaml"):
        click.echo(
            output.dump({"apiVersion": "v1", "kind": "List", "items": list(map(to_json, templates))}, output_format)
        )
        return 0
    rows = [[template.metadata.name, _description(template)] for template in templates]
    click.echo(output.table(["NAME", "DESCRIPTION"], rows, headers=headers))
    return 0


def _description(template: Template) -> str:
    text = output.printable(template.spec.description)
    return f"{text} (default)".lstrip() if template.spec.default else text
