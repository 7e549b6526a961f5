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
from aliquot.cli.get import output_options
from aliquot.cli.projects import list_queues
from aliquot.cli.runai import job_columns
from aliquot.cli.runai.nodes import list_nodes
from aliquot.cli.runai.program import JobVerb, project_option
from aliquot.cli.runai.scope import Scope, pods_in, pods_of, project_in, projects_by_namespace, scope_of
from aliquot.cli.session import Session, session
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store


class Job(NamedTuple):
    """A workload with what its row needs."""

    workload: Workload
    pods: list[Pod]
    project: str
    word: str

    @property
    def created(self) -> float:
        return self.workload.metadata.created or 0.0


Cell = Callable[[Job, float], str]
_FIRST: dict[str, Cell] = {
    "NAME": lambda job, now: job.workload.metadata.name,
    "STATUS": lambda job, now: job.word,
    "AGE": lambda job, now: output.age(now - job.created),
    "NODE": lambda job, now: job_columns.node_cell(job.workload, job.pods, job.word),
    "IMAGE": lambda job, now: job.workload.spec.image or "",
    "TYPE": lambda job, now: job_columns.TYPE_WORDS[job.workload.spec.type],
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


def pod_cell(job: Job) -> str:
    counts = job.workload.status.pods
    running = job_columns.running_pods(job.pods) if job.pods else counts.running
    pending = job_columns.pending_pods(job.pods) if job.pods else counts.pending
    return f"{running} ({pending})"


def table(jobs: Sequence[Job], layout: dict[str, Cell], now: float, *, headers: bool = True) -> str:
    rows = [[output.clean(cell(job, now)) for cell in layout.values()] for job in jobs]
    return output.table(list(layout), rows, headers=headers)


def in_order_2020(jobs: Sequence[Job]) -> list[Job]:
    """Pending first, then the newest."""
    return sorted(jobs, key=lambda job: (job.word == "Pending", job.created, _counted(job)), reverse=True)


def _counted(job: Job) -> str:
    """A name to compare by. Kubernetes knows the second of a creation; within one, numbers tell what came later."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), job.workload.metadata.name)


def in_order_2023(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: (job.workload.metadata.name, job.project))


async def read_jobs(driver: StoreDriver, scope: Scope | None) -> list[Job]:
    """The jobs of a project, or of all."""
    namespace = scope.namespace if scope else None
    workloads = (await Store(driver).list(Workload, namespace)).items
    pods = await pods_in(driver, namespace)
    known = {scope.namespace: scope.project} if scope else await projects_by_namespace(driver)
    by_namespace: dict[str, list[Pod]] = {}
    for pod in pods:
        by_namespace.setdefault(pod.metadata.namespace, []).append(pod)
    found = []
    for workload in workloads:
        own = pods_of(workload, by_namespace.get(workload.metadata.namespace, ()))
        project = project_in(workload.metadata.namespace, known)
        found.append(Job(workload, own, project, job_columns.status_word(workload, own)))
    return found


def _jobs(here: Session, asked: str, everywhere: bool, form: str, *, classic: bool, headers: bool) -> int:
    async def work(driver: StoreDriver) -> tuple[Scope | None, list[Job]]:
        scope = None if everywhere else await scope_of(here, driver, asked)
        return scope, await read_jobs(driver, scope)

    scope, jobs = here.run(work)
    jobs = in_order_2020(jobs) if classic else in_order_2023(jobs)
    if form in ("json", "yaml"):
        items = [to_json(job.workload) for job in jobs]
        click.echo(output.shown_as({"apiVersion": "v1", "kind": "List", "items": items}, form))
        return 0
    if form == "name":
        for job in jobs:
            click.echo(job.workload.metadata.name)
        return 0
    if scope and headers:
        click.echo(f"Showing jobs for project {scope.project}")
    click.echo(table(jobs, LAYOUT_2020 if classic else LAYOUT_2023, time.time(), headers=headers))
    return 0


@click.command("list", cls=JobVerb)
@click.argument("words", nargs=-1, metavar="[jobs|projects|nodes|clusters|templates|KIND]")
@click.option("-A", "--all-projects", "--all", "everywhere", is_flag=True, help="Jobs of all projects.")
@output_options
@project_option
def list_(words: tuple[str, ...], everywhere: bool, form: str, no_headers: bool, project: str) -> int:
    """List jobs; or other things, by their word."""
    here, headers = session(), not no_headers
    what = words[0].lower() if words else ""
    if what in ("", "jobs", "job"):
        if len(words) > 1:
            raise click.UsageError(f"unexpected word {words[1]!r}; `runai describe job {words[1]}` shows one job")
        return _jobs(here, project, everywhere, form, classic=not what, headers=headers)
    if what in ("nodes", "node"):
        return list_nodes(here, words[1:], form, headers=headers)
    if what in ("projects", "project", "departments", "department") and len(words) == 1:
        return list_queues(here, KINDS.named(what), form, headers=headers)
    if what in ("clusters", "cluster"):
        return list_clusters(here, form, headers=headers)
    if what in ("templates", "template"):
        return list_templates(here, project, form, headers=headers)
    from aliquot.cli.get import Query, show
    from aliquot.cli.session import Place

    show(here, words[0], words[1:], Place(project=project, everywhere=everywhere), Query(), form, headers=headers)
    return 0


def list_clusters(here: Session, form: str, *, headers: bool) -> int:
    """One server is one cluster; the one that commands go to is the current one."""

    async def work(driver: StoreDriver) -> str:
        await driver.check()
        return "Ready"

    row = {"name": "default", "url": here.connection.url, "status": here.run(work), "current": True}
    if form in ("json", "yaml"):
        click.echo(output.shown_as([row], form))
    else:
        cells = ["default (current)", here.connection.url, str(row["status"])]
        click.echo(output.table(["CLUSTER", "URL", "STATUS"], [cells], headers=headers))
    return 0


def list_templates(here: Session, asked: str, form: str, *, headers: bool) -> int:
    """Everybody's templates and those of the project."""

    async def work(driver: StoreDriver) -> list[Template]:
        places = [labels.SYSTEM_NAMESPACE]
        if asked or here.settings.project:
            places.append((await scope_of(here, driver, asked)).namespace)
        return [each for place in places for each in (await Store(driver).list(Template, place)).items]

    found = sorted(here.run(work), key=lambda each: each.metadata.name)
    if form in ("json", "yaml"):
        click.echo(output.shown_as({"apiVersion": "v1", "kind": "List", "items": list(map(to_json, found))}, form))
        return 0
    rows = [[each.metadata.name, _described(each)] for each in found]
    click.echo(output.table(["NAME", "DESCRIPTION"], rows, headers=headers))
    return 0


def _described(template: Template) -> str:
    text = output.clean(template.spec.description)
    return f"{text} (default)".lstrip() if template.spec.default else text
