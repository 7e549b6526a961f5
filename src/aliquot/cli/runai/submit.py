"""`submit`, `submit-mpi` and `submit-dist`: turn flags into a workload and store it."""

from __future__ import annotations

import getpass
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import click

from aliquot import labels
from aliquot.cli import output
from aliquot.cli.program import Entry, Lazy
from aliquot.cli.runai import spec as specs
from aliquot.cli.runai.flags import COMMON, DISTRIBUTED, SERVING, Flag, with_flags
from aliquot.cli.runai.program import OFF, REST, JobVerb, project_option
from aliquot.cli.runai.scope import Scope, scope_of
from aliquot.cli.runai.spec import Given
from aliquot.cli.session import session
from aliquot.errors import Exists, Invalid, NotFound
from aliquot.store.base import Body, Document
from aliquot.types import KINDS
from aliquot.types.base import Json

CREATED_BY_CLI = {labels.CREATED_BY: "cli"}
_KIND = KINDS.named("workload")
_TEMPLATES = KINDS.named("template")
_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"  # no vowels: no words by chance
_EPILOG = "Words after a bare `--` are arguments of the image's program, or with --command the program itself."


def _command(name: str, framework: str, flags: Sequence[Flag], help: str) -> click.Command:
    @click.command(name, cls=JobVerb, help=help, epilog=_EPILOG)
    @click.argument("words", nargs=-1, metavar="[NAME]")
    @with_flags(flags)
    @project_option
    @click.pass_context
    def command(ctx: click.Context, /, words: tuple[str, ...], project: str, **values: Any) -> int:
        off = frozenset(ctx.meta.get(OFF) or ())
        given = Given(values, ctx.meta.get(REST), off, framework, tuple(flags))
        return _submit(given, words, project)

    return command


def _submit(given: Given, words: Sequence[str], asked: str) -> int:
    here = session()
    name = job_name(given, words)
    wanted = specs.spec_of(given)
    wanted["user"] = user_name()

    async def work(body: Body) -> tuple[Scope, Json]:
        scope = await scope_of(here, body, asked)
        spec = await _filled(body, scope, wanted)
        if not spec.get("image"):
            raise Invalid("--image: is required: give -i IMAGE, or a template that has one")
        return scope, await _create(body, scope, name, given, spec)

    scope, made = here.run(work)
    if given.switch("dry_run"):
        click.echo(output.as_yaml(made))
        return 0
    done = made["metadata"]["name"]
    click.echo(f"Job {done} submitted successfully.")
    click.echo(f"You can check the status of the job by running:\n    runai describe job {done} -p {scope.project}")
    if given.switch("jupyter"):
        click.echo(f"The token of the notebook: {_token_in(made['spec'])}")
    if given.switch("attach"):
        here.note(f"Attaching is not possible yet; follow it with: runai logs -f {done} -p {scope.project}")
    return 0


def job_name(given: Given, words: Sequence[str]) -> str:
    """The name that was given; "" when one is to be made."""
    if len(words) > 1:
        raise click.UsageError(f"unexpected word {words[1]!r}: one job at a time; its arguments go after `--`")
    named = given.text("name")
    if words and named and words[0] != named:
        raise Invalid(f"the job has two names, {words[0]!r} and --name {named!r}: give one")
    return words[0] if words else named


def user_name() -> str:
    """Whom listings show: the user of this machine."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name, as in many containers
        return "unknown"


# --- templates, until the server fills them in by itself


async def _filled(body: Body, scope: Scope, spec: Json) -> Json:
    template = await _template(body, scope, spec.get("template") or "", spec["type"])
    if template is not None:
        values = {**(template.data.get("spec") or {}).get("values", {})}
        values.pop("type", None)  # the flags always say it
        spec = specs.with_template(spec, values)
        spec["template"] = template.name
    return _with_notebook(spec) if spec.get("jupyter") else spec


async def _template(body: Body, scope: Scope, name: str, type_: str) -> Document | None:
    """The one that is named, or else the default one; the project's own before everybody's."""
    places = (scope.namespace, labels.SYSTEM_NAMESPACE)
    if name:
        for place in places:
            try:
                return await body.get(_TEMPLATES, name, place)
            except NotFound:
                continue
        raise NotFound(f"template {name!r} does not exist", hint="`runai list templates` shows those there are")
    for place in places:
        for document in sorted((await body.list(_TEMPLATES, place)).items, key=lambda each: each.name):
            spec = document.data.get("spec") or {}
            if spec.get("default") and type_ in (spec.get("types") or [type_]):
                return document
    return None


def _with_notebook(spec: Json) -> Json:
    """What `--jupyter` means where nothing else is said: an image, its program, a port, and a token."""
    preset: Json = {
        "image": specs.JUPYTER_IMAGE,
        "command": ["start-notebook.sh"],
        "ports": [{"container": 8888}],
        "serviceType": "portforward",
        "environment": [{"name": "JUPYTER_TOKEN", "value": secrets.token_hex(16)}],
    }
    return specs.with_template(spec, preset)


def _token_in(spec: Json) -> str:
    found = [each.get("value", "") for each in spec.get("environment", []) if each["name"] == "JUPYTER_TOKEN"]
    return found[0] if found else ""


# --- names


async def _create(body: Body, scope: Scope, name: str, given: Given, spec: Json) -> Json:
    if name:
        document = specs.checked(name, scope.namespace, spec, CREATED_BY_CLI)
        if given.switch("dry_run"):
            return document
        try:
            return (await body.create(_KIND, Document(document))).data
        except Exists:
            raise Exists(
                f"job {name!r} already exists in project {scope.project!r}",
                hint=f"choose another name, or delete it first: runai delete {name} -p {scope.project}",
            ) from None
    taken = {document.name for document in (await body.list(_KIND, scope.namespace)).items}
    for prefix, made in _names(given, taken):
        document = specs.checked(made, scope.namespace, {**spec, "namePrefix": prefix}, CREATED_BY_CLI)
        if given.switch("dry_run"):
            return document
        try:
            return (await body.create(_KIND, Document(document))).data
        except Exists:
            continue  # somebody else took it just now
    raise AssertionError("names do not end")


def _names(given: Given, taken: set[str]) -> Iterator[tuple[str, str]]:
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
submit_dist = Lazy(
    "submit-dist",
    {
        "mpi": Entry(_HERE, "mpi", "With MPI."),
        "pytorch": Entry(_HERE, "pytorch", "With PyTorch."),
        "tf": Entry(_HERE, "tensorflow", "With TensorFlow."),
        "tensorflow": Entry(_HERE, "tensorflow", "With TensorFlow.", hidden=True),
        "xgboost": Entry(_HERE, "xgboost", "With XGBoost."),
    },
    help="Submit a distributed job.",
)
