"""`submit`, `submit-mpi` and `submit-dist`: create a workload from flags."""

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
_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"  # no vowels, so that no words result by chance
_EPILOG = (
    "Arguments after `--` are passed to the image's program. "
    "After --command without a value they are the program and its arguments."
)


def _command(name: str, framework: str, definitions: Sequence[Flag], help: str) -> click.Command:
    @click.command(name, cls=RunaiCommand, help=help, epilog=_EPILOG)
    @click.argument("arguments", nargs=-1, metavar="[NAME]")
    @with_flags(definitions)
    @project_option
    @click.pass_context
    def command(ctx: click.Context, /, arguments: tuple[str, ...], project: str, **values: Any) -> int:
        disabled = frozenset(ctx.meta.get(DISABLED_SWITCHES) or ())
        flags = SubmitFlags(values, ctx.meta.get(TRAILING_ARGUMENTS), disabled, framework, tuple(definitions))
        return _submit(flags, arguments, project)

    return command


def _submit(flags: SubmitFlags, arguments: Sequence[str], project: str) -> int:
    context = command_context()
    name = job_name(flags, arguments)
    spec = specs.spec_from_flags(flags)
    spec["user"] = user_name()

    async def create(server: Server) -> tuple[ProjectScope, Json]:
        scope = await resolve_project(context, server, project)
        return scope, await _create(server, scope, name, flags, spec)

    scope, workload = context.run(create)
    if flags.switch("dry_run"):
        click.echo(output.as_yaml(workload))
        return 0
    created = workload["metadata"]["name"]
    click.echo(f"Job {created} submitted successfully.")
    click.echo(f"You can check the status of the job by running:\n    runai describe job {created} -p {scope.project}")
    if flags.switch("jupyter"):
        click.echo(f"The token of the notebook: {_notebook_token(workload['spec'])}")
    if flags.switch("attach"):
        context.note(f"Attaching is not possible yet; follow it with: runai logs -f {created} -p {scope.project}")
    return 0


def job_name(flags: SubmitFlags, arguments: Sequence[str]) -> str:
    """The name from the command line; "" when the name is to be generated."""
    if len(arguments) > 1:
        raise click.UsageError(f"unexpected argument {arguments[1]!r}: one job at a time; its arguments go after `--`")
    name_flag = flags.text("name")
    if arguments and name_flag and arguments[0] != name_flag:
        raise Invalid(f"the job has two names, {arguments[0]!r} and --name {name_flag!r}: give one")
    return arguments[0] if arguments else name_flag


def user_name() -> str:
    """The user of this machine, for the column USER of listings."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name, as in many containers
        return "unknown"


def _notebook_token(spec: Json) -> str:
    values = [each.get("value", "") for each in spec.get("environment", []) if each["name"] == "JUPYTER_TOKEN"]
    return values[0] if values else ""


async def _create(server: Server, scope: ProjectScope, name: str, flags: SubmitFlags, spec: Json) -> Json:
    if name:
        try:
            return await _store(server, scope, name, flags, spec)
        except Exists:
            raise Exists(
                f"job {name!r} already exists in project {scope.project!r}",
                hint=f"choose another name, or delete it first: runai delete {name} -p {scope.project}",
            ) from None
    taken = {document.name for document in (await server.list(_KIND, scope.namespace)).items}
    for prefix, candidate in _generated_names(flags, taken):
        try:
            return await _store(server, scope, candidate, flags, {**spec, "namePrefix": prefix})
        except Exists:
            continue  # the name was taken in the meantime
    raise AssertionError("_generated_names is infinite")


async def _store(server: Server, scope: ProjectScope, name: str, flags: SubmitFlags, spec: Json) -> Json:
    """Create the job, or only check it for --dry-run. Returns it with the defaults of its template and policies."""
    document = Document(specs.workload_document(name, scope.namespace, spec, CREATED_BY_CLI))
    try:
        if flags.switch("dry_run"):
            return await server.dry_run_create(_KIND, document)
        return (await server.create(_KIND, document)).data
    except Invalid as exc:
        raise specs.name_flags_in(exc) from None


def _generated_names(flags: SubmitFlags, taken: set[str]) -> Iterator[tuple[str, str]]:
    """An infinite series of (prefix, name): with numbers above the highest one in use, or with random letters."""
    if flags.text("name_prefix"):
        prefix = flags.text("name_prefix")
        while True:
            yield prefix, f"{prefix}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
    prefix = flags.text("job_name_prefix") or "job"
    pattern = re.compile(re.escape(prefix) + r"-([0-9]{1,9})")
    index = max((int(match[1]) + 1 for name in taken if (match := pattern.fullmatch(name))), default=0)
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

_MODULE = "aliquot.cli.runai.submit"
submit_dist = LazyGroup(
    "submit-dist",
    {
        "mpi": CommandSpec(_MODULE, "mpi", "Submit a distributed job with MPI."),
        "pytorch": CommandSpec(_MODULE, "pytorch", "Submit a distributed job with PyTorch."),
        "tf": CommandSpec(_MODULE, "tensorflow", "Submit a distributed job with TensorFlow."),
        "tensorflow": CommandSpec(_MODULE, "tensorflow", "Submit a distributed job with TensorFlow.", hidden=True),
        "xgboost": CommandSpec(_MODULE, "xgboost", "Submit a distributed job with XGBoost."),
    },
    help="Submit a distributed job.",
)
