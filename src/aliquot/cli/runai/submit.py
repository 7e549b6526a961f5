"""`submit`, `submit-mpi` and `submit-dist`: turn flags into a workload and store it."""

from __future__ import annotations

import getpass
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import click

from aliquot import labels
from aliquot.api import KINDS, Json
from aliquot.cli import output
from aliquot.cli.context import command_context
from aliquot.cli.program import CommandSpec, LazyGroup
from aliquot.cli.runai import workload_spec as specs
from aliquot.cli.runai.flags import COMMON, DISTRIBUTED, SERVING, Flag, with_flags
from aliquot.cli.runai.job_lookup import ProjectScope, resolve_project
from aliquot.cli.runai.program import DISABLED_SWITCHES, TRAILING_ARGUMENTS, RunaiCommand, project_option
from aliquot.cli.runai.workload_spec import SubmitFlags
from aliquot.client import Server
from aliquot.errors import Exists, Invalid
from aliquot.store.driver import Document

CREATED_BY_CLI = {labels.CREATED_BY: "cli"}
_KIND = KINDS.named("workload")
_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"  # no vowels: no words by chance
_EPILOG = "Words after a bare `--` are arguments of the image's program, or with --command the program itself."


def _command(name: str, framework: str, flags: Sequence[Flag], help: str) -> click.Command:
    @click.command(name, cls=RunaiCommand, help=help, epilog=_EPILOG)
    @click.argument("arguments", nargs=-1, metavar="[NAME]")
    @with_flags(flags)
    @project_option
    @click.pass_context
    def command(ctx: click.Context, /, arguments: tuple[str, ...], project: str, **values: Any) -> int:
        off = frozenset(ctx.meta.get(DISABLED_SWITCHES) or ())
        given = SubmitFlags(values, ctx.meta.get(TRAILING_ARGUMENTS), off, framework, tuple(flags))
        return _submit(given, arguments, project)

    return command


def _submit(given: SubmitFlags, arguments: Sequence[str], project: str) -> int:
    context = command_context()
    name = job_name(given, arguments)
    wanted = specs.spec_from_flags(given)
    wanted["user"] = user_name()

    async def work(server: Server) -> tuple[ProjectScope, Json]:
        scope = await resolve_project(context, server, project)
        return scope, await _create(server, scope, name, given, wanted)

    scope, made = context.run(work)
    if given.switch("dry_run"):
        click.echo(output.as_yaml(made))
        return 0
    done = made["metadata"]["name"]
    click.echo(f"Job {done} submitted successfully.")
    click.echo(f"You can check the status of the job by running:\n    runai describe job {done} -p {scope.project}")
    if given.switch("jupyter"):
        click.echo(f"The token of the notebook: {_token_in(made['spec'])}")
    if given.switch("attach"):
        context.note(f"Attaching is not possible yet; follow it with: runai logs -f {done} -p {scope.project}")
    return 0


def job_name(given: SubmitFlags, arguments: Sequence[str]) -> str:
    """The name that was given; "" when one is to be made."""
    if len(arguments) > 1:
        raise click.UsageError(f"unexpected word {arguments[1]!r}: one job at a time; its arguments go after `--`")
    named = given.text("name")
    if arguments and named and arguments[0] != named:
        raise Invalid(f"the job has two names, {arguments[0]!r} and --name {named!r}: give one")
    return arguments[0] if arguments else named


def user_name() -> str:
    """Whom listings show: the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name, as in many containers
        return "unknown"


def _token_in(spec: Json) -> str:
    found = [each.get("value", "") for each in spec.get("environment", []) if each["name"] == "JUPYTER_TOKEN"]
    return found[0] if found else ""


# --- names


async def _create(server: Server, scope: ProjectScope, name: str, given: SubmitFlags, spec: Json) -> Json:
    if name:
        try:
            return await _store(server, scope, name, given, spec)
        except Exists:
            raise Exists(
                f"job {name!r} already exists in project {scope.project!r}",
                hint=f"choose another name, or delete it first: runai delete {name} -p {scope.project}",
            ) from None
    taken = {document.name for document in (await server.list(_KIND, scope.namespace)).items}
    for prefix, made in _names(given, taken):
        try:
            return await _store(server, scope, made, given, {**spec, "namePrefix": prefix})
        except Exists:
            continue  # somebody else took it just now
    raise AssertionError("names do not end")


async def _store(server: Server, scope: ProjectScope, name: str, given: SubmitFlags, spec: Json) -> Json:
    """The job as the server made it, with what its template and policies say."""
    document = Document(specs.workload_document(name, scope.namespace, spec, CREATED_BY_CLI))
    try:
        if given.switch("dry_run"):
            return await server.rehearse(_KIND, document)
        return (await server.create(_KIND, document)).data
    except Invalid as exc:
        raise specs.name_flags_in(exc) from None


def _names(given: SubmitFlags, taken: set[str]) -> Iterator[tuple[str, str]]:
    """(prefix, name) for ever: counted on from the highest there is, or with random letters."""
    if given.text("name_prefix"):
        prefix = given.text("name_prefix")
        while True:
            yield prefix, f"{prefix}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
    prefix = given.text("job_name_prefix") or "job"
    pattern = re.compile(re.escape(prefix) + r"-([0-9]{1,9})")
    index = max((int(found[1]) + 1 for name in taken if (found := pattern.fullmatch(name))), default=0)
    while True:
        yield prefix, f"{prefix}-{index}"
        index += 1


submit = _command("submit", "", (*COMMON, *SERVING), "Submit a job.")
_DISTRIBUTED = (*COMMON, *DISTRIBUTED)
submit_mpi = _command("submit-mpi", "mpi", _DISTRIBUTED, "Submit a distributed job with MPI.")
mpi = _command("mpi", "mpi", _DISTRIBUTED, "Submit a distributed job with MPI.")
pytorch = _command("pytorch", "pytorch", _DISTRIBUTED, "Submit a distributed job with PyTorch.")
tensorflow = _command("tf", "tensorflow", _DISTRIBUTED, "Submit a distributed job with TensorFlow.")
xgboost = _command("xgboost", "xgboost", _DISTRIBUTED, "Submit a distributed job with XGBoost.")

_HERE = "aliquot.cli.runai.submit"
submit_dist = LazyGroup(
    "submit-dist",
    {
        "mpi": CommandSpec(_HERE, "mpi", "With MPI."),
        "pytorch": CommandSpec(_HERE, "pytorch", "With PyTorch."),
        "tf": CommandSpec(_HERE, "tensorflow", "With TensorFlow."),
        "tensorflow": CommandSpec(_HERE, "tensorflow", "With TensorFlow.", hidden=True),
        "xgboost": CommandSpec(_HERE, "xgboost", "With XGBoost."),
    },
    help="Submit a distributed job.",
)
