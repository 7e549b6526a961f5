"""`delete`, `suspend` and `resume`: what a user does to jobs that are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from aliquot.api import KINDS, Workload
from aliquot.cli import output
from aliquot.cli.delete_and_label import delete as delete_objects
from aliquot.cli.runai.program import JobOrKind, JobVerb, project_option
from aliquot.cli.runai.scope import JOB_WORDS, Scope, is_kind, job, no_such_job, scope_of
from aliquot.cli.session import Session, session
from aliquot.cli.targets import complete_names
from aliquot.errors import Conflict, Invalid, NotFound, PlatformError
from aliquot.store.driver import StoreDriver
from aliquot.store.typed_store import Store

_KIND = KINDS.named("workload")
Step = Callable[[StoreDriver, Scope, str], Awaitable[str]]


def jobs_named(words: Sequence[str]) -> list[str]:
    """The jobs in `[job] NAME...`; a job may itself be called `job`."""
    names = list(words[1:] if len(words) > 1 and words[0] in JOB_WORDS else words)
    return [name.partition("/")[2] if name.partition("/")[0] in JOB_WORDS and "/" in name else name for name in names]


def _names_other_kind(words: Sequence[str]) -> bool:
    if not words or words[0].partition("/")[0] in JOB_WORDS:
        return False
    return ("/" in words[0] or len(words) > 1) and is_kind(words[0])


@click.command("delete", cls=JobOrKind, general=delete_objects, is_general=_names_other_kind)
@click.argument("words", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "everything", is_flag=True, help="All jobs of the project.")
@project_option
def delete(words: tuple[str, ...], everything: bool, project: str) -> int:
    """Delete jobs: they stop and are gone, with their logs. `delete KIND NAME...` deletes other objects."""

    async def step(driver: StoreDriver, scope: Scope, name: str) -> str:
        try:
            await driver.delete(_KIND, name, scope.namespace)
        except NotFound:
            raise no_such_job(scope, name) from None
        return f"Job {name} deleted successfully."

    return _each(session(), words, everything, project, step)


@click.command("suspend", cls=JobVerb)
@click.argument("words", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "everything", is_flag=True, help="All jobs of the project.")
@project_option
def suspend(words: tuple[str, ...], everything: bool, project: str) -> int:
    """Stop jobs and keep their definition; what is in their containers is lost."""

    async def step(driver: StoreDriver, scope: Scope, name: str) -> str:
        found = await job(driver, scope, name)
        if found.spec.type == "inference" or (found.spec.distributed and found.spec.distributed.framework == "mpi"):
            raise Invalid(f"job {name!r} cannot be suspended: it is inference or MPI; delete it instead")
        if found.status.phase in ("Completed", "Failed"):
            raise Conflict(f"job {name!r} has ended ({found.status.phase}): there is nothing to suspend")
        await _activate(driver, scope, name, False)
        return f"Job {name} suspended successfully."

    return _each(session(), words, everything, project, step)


@click.command("resume", cls=JobVerb)
@click.argument("words", nargs=-1, metavar="[job] NAME...", shell_complete=complete_names("workload"))
@click.option("-A", "--all", "everything", is_flag=True, help="All jobs of the project.")
@project_option
def resume(words: tuple[str, ...], everything: bool, project: str) -> int:
    """Let suspended jobs run again; they join the queue."""

    async def step(driver: StoreDriver, scope: Scope, name: str) -> str:
        await job(driver, scope, name)
        await _activate(driver, scope, name, True)
        return f"Job {name} resumed successfully."

    return _each(session(), words, everything, project, step)


async def _activate(driver: StoreDriver, scope: Scope, name: str, active: bool) -> None:
    # `true` is the default and is not written: null takes the field away.
    await driver.patch(_KIND, name, scope.namespace, {"spec": {"active": None if active else False}})


def _each(here: Session, words: Sequence[str], everything: bool, asked: str, step: Step) -> int:
    """One line per job; one that fails does not hold up the others."""
    names = jobs_named(words)
    if bool(names) == everything:
        raise click.UsageError("which jobs? Give their names, or -A for all of the project.")
    failed = False

    async def work(driver: StoreDriver) -> None:
        nonlocal failed
        scope = await scope_of(here, driver, asked)
        found = (await Store(driver).list(Workload, scope.namespace)).items if everything else []
        for name in names or sorted(each.metadata.name for each in found):
            try:
                click.echo(await step(driver, scope, name))
            except PlatformError as exc:
                failed = True
                output.fail(exc)
        if everything and not found:
            here.note(f"No jobs in project {scope.project}.")

    here.run(work)
    return 1 if failed else 0
