"""`delete`, `suspend` and `resume` of jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from aliquot.api import KINDS, Workload
from aliquot.cli import output
from aliquot.cli.context import CommandContext, command_context
from aliquot.cli.delete_and_label import delete as delete_objects
from aliquot.cli.runai.job_lookup import (
    JOB_KIND_NAMES,
    ProjectScope,
    get_job,
    job_not_found,
    names_kind,
    resolve_project,
)
from aliquot.cli.runai.program import JobOrKindCommand, RunaiCommand, project_option
from aliquot.cli.shell_completion import complete_names
from aliquot.errors import Conflict, Invalid, NotFound, PlatformError
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store

_KIND = KINDS.named("workload")
# Acts on one job and returns the message to print.
JobAction = Callable[[StoreDriver, ProjectScope, str], Awaitable[str]]


def job_names(arguments: Sequence[str]) -> list[str]:
    """The names in `[job] NAME...`; a job may itself be called `job`."""
    names = list(arguments[1:] if len(arguments) > 1 and arguments[0] in JOB_KIND_NAMES else arguments)
    return [
        name.partition("/")[2] if name.partition("/")[0] in JOB_KIND_NAMES and "/" in name else name for name in names
    ]


def _names_other_kind(arguments: Sequence[str]) -> bool:
    if not arguments or arguments[0].partition("/")[0] in JOB_KIND_NAMES:
        return False
    return ("/" in arguments[0] or len(arguments) > 1) and names_kind(arguments[0])


@click.command("delete", cls=JobOrKindCommand, kind_command=delete_objects, is_for_kind=_names_other_kind)
@click.argument("arguments", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "all_jobs", is_flag=True, help="Act on all jobs of the project.")
@project_option
def delete(arguments: tuple[str, ...], all_jobs: bool, project: str) -> int:
    """Delete jobs and their logs; running jobs are stopped. `delete KIND NAME...` deletes other objects."""

    async def action(driver: StoreDriver, scope: ProjectScope, name: str) -> str:
        try:
            await driver.delete(_KIND, name, scope.namespace)
        except NotFound:
            raise job_not_found(scope, name) from None
        return f"Job {name} deleted successfully."

    return _for_each_job(command_context(), arguments, all_jobs, project, action)


@click.command("suspend", cls=RunaiCommand)
@click.argument("arguments", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "all_jobs", is_flag=True, help="Act on all jobs of the project.")
@project_option
def suspend(arguments: tuple[str, ...], all_jobs: bool, project: str) -> int:
    """Stop jobs and keep their definition. Data inside of their containers is lost."""

    async def action(driver: StoreDriver, scope: ProjectScope, name: str) -> str:
        job = await get_job(driver, scope, name)
        if job.spec.type == "inference" or (job.spec.distributed and job.spec.distributed.framework == "mpi"):
            raise Invalid(f"job {name!r} cannot be suspended: it is inference or MPI; delete it instead")
        if job.status.phase in ("Completed", "Failed"):
            raise Conflict(f"job {name!r} has ended ({job.status.phase}): there is nothing to suspend")
        await _set_active(driver, scope, name, False)
        return f"Job {name} suspended successfully."

    return _for_each_job(command_context(), arguments, all_jobs, project, action)


@click.command("resume", cls=RunaiCommand)
@click.argument("arguments", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "all_jobs", is_flag=True, help="Act on all jobs of the project.")
@project_option
def resume(arguments: tuple[str, ...], all_jobs: bool, project: str) -> int:
    """Queue suspended jobs again."""

    async def action(driver: StoreDriver, scope: ProjectScope, name: str) -> str:
        await get_job(driver, scope, name)
        await _set_active(driver, scope, name, True)
        return f"Job {name} resumed successfully."

    return _for_each_job(command_context(), arguments, all_jobs, project, action)


async def _set_active(driver: StoreDriver, scope: ProjectScope, name: str, active: bool) -> None:
    # `true` is the default, which is not stored: null removes the field.
    await driver.patch(_KIND, name, scope.namespace, {"spec": {"active": None if active else False}})


def _for_each_job(
    context: CommandContext, arguments: Sequence[str], all_jobs: bool, project: str, action: JobAction
) -> int:
    """Run the action for each job and print a line per job. After a failure the other jobs follow all the same."""
    names = job_names(arguments)
    if bool(names) == all_jobs:
        raise click.UsageError("which jobs? Give their names, or -A for all of the project.")
    failed = False

    async def act(driver: StoreDriver) -> None:
        nonlocal failed
        scope = await resolve_project(context, driver, project)
        jobs = (await Store(driver).list(Workload, scope.namespace)).items if all_jobs else []
        for name in names or sorted(job.metadata.name for job in jobs):
            try:
                click.echo(await action(driver, scope, name))
            except PlatformError as exc:
                failed = True
                output.print_error(exc)
        if all_jobs and not jobs:
            context.note(f"No jobs in project {scope.project}.")

    context.run(act)
    return 1 if failed else 0
