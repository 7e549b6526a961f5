"""`project` and `department`: queues, with their quotas as flags.

Both groups are built from the same commands, because both kinds are queues with the same fields. A project also belongs
to a department, becomes ready some time after its creation, and can be the user's default.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import click

from aliquot import units
from aliquot.api import KINDS, Json
from aliquot.cli import output
from aliquot.cli.context import CommandContext, NamespaceScope, command_context
from aliquot.cli.delete_and_label import delete_objects
from aliquot.cli.get import list_object, output_options
from aliquot.cli.object_refs import ObjectRef, project_not_found
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.cli.shell_completion import complete_names
from aliquot.errors import Invalid, NotFound, PlatformError, Unavailable
from aliquot.store.driver import AnyKind, Document, StoreDriver

READY_S = 10.0  # a project that is not ready by then has a problem that waiting does not solve
_QUIET_S = 2.0
_POLL_S = 0.1


def _cores(text: str) -> int | float:
    return units.whole_units(units.milli(text))


def _memory(text: str) -> str:
    return units.quantity_text(units.quantity(text))


# flag -> (path in the spec, parser, help). With --node-pool the path is relative to the spec of that pool.
_AMOUNTS: dict[str, tuple[tuple[str, str], Callable[[str], Any], str]] = {
    "gpu": (("quota", "gpu"), _cores, "Guaranteed GPUs, with up to three decimals."),
    "cpu": (("quota", "cpu"), _cores, "Guaranteed CPU cores, or unlimited."),
    "memory": (("quota", "memory"), _memory, "Guaranteed CPU memory such as 64Gi, or unlimited."),
    "gpu-limit": (("limit", "gpu"), _cores, "Limit of GPUs, or unlimited."),
    "cpu-limit": (("limit", "cpu"), _cores, "Limit of CPU cores, or unlimited."),
    "memory-limit": (("limit", "memory"), _memory, "Limit of CPU memory, or unlimited."),
}


def spec_from_flags(flags: dict[str, Any]) -> Json:
    """The spec that the flags describe, as a merge patch; `unlimited` removes an amount."""
    terms: Json = {}
    for flag, (path, parse, _) in _AMOUNTS.items():
        text = flags.get(flag.replace("-", "_"))
        if text is not None:
            terms.setdefault(path[0], {})[path[1]] = _amount(flag, text, parse)
    if flags.get("over_quota") is not None:
        terms["overQuota"] = flags["over_quota"]
    if flags.get("priority") is not None:
        terms["priority"] = flags["priority"]
    pool = flags.get("node_pool")
    spec = terms if pool in (None, "default") else {"pools": {pool: terms}}
    plain = {name: flags[name] for name in ("department", "description") if flags.get(name) is not None}
    return {**plain, **spec}


def _amount(flag: str, text: str, parse: Callable[[str], Any]) -> Any:
    if text.lower() in ("unlimited", "-1") and flag != "gpu":
        return None
    try:
        return parse(text)
    except ValueError as exc:
        raise Invalid(f"--{flag}: {exc}") from None


def _queue_flags(kind: AnyKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--description", metavar="TEXT", help="Description.")(command)
        command = click.option("--node-pool", metavar="POOL", help="Node pool of the amounts; default.")(command)
        command = click.option("--priority", type=int, help="Queues of higher priority get idle resources first.")(
            command
        )
        command = click.option(
            "--over-quota/--no-over-quota",
            default=None,
            help="Whether it may use more than its quota when others leave resources idle.",
        )(command)
        for flag, (_, _, text) in reversed(_AMOUNTS.items()):
            command = click.option(f"--{flag}", metavar="AMOUNT", help=text)(command)
        if kind.name == "Project":
            completer = complete_names("departments")
            command = click.option(
                "--department", metavar="NAME", help="Department of the project; default.", shell_complete=completer
            )(command)
        return command

    return decorate


def _queue_group(kind: AnyKind) -> click.Group:
    word = kind.singular
    group = click.Group(word, help=f"{word.title()}s and their quotas.", no_args_is_help=True)
    name = click.argument("name", metavar="NAME", shell_complete=complete_names(kind.singular))

    def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
        if kind.name != "Project":
            return command
        text = "Wait until the project is ready."
        return click.option("--wait/--no-wait", default=True, help=text)(command)

    @group.command("create", cls=GlobalOptionsCommand, help=f"Create a {word}.")
    @click.argument("name", metavar="NAME")
    @_queue_flags(kind)
    @wait_option
    def create(name: str, wait: bool = False, **flags: Any) -> None:
        _create(command_context(), ObjectRef(kind, name), spec_from_flags(flags), wait)

    @group.command(
        "update", cls=GlobalOptionsCommand, help=f"Change a {word}. Flags that are not given change nothing."
    )
    @name
    @_queue_flags(kind)
    def update(name: str, **flags: Any) -> None:
        spec = spec_from_flags(flags)
        if not spec:
            raise click.UsageError("say what to change, such as --gpu 4")
        _update(command_context(), ObjectRef(kind, name), spec)

    @group.command("delete", cls=GlobalOptionsCommand, help=f"Delete {word}s.")
    @click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names(kind.singular))
    @click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
    @click.option("--wait", is_flag=True, help="Wait until they are gone.")
    def delete(names: tuple[str, ...], yes: bool, wait: bool) -> int:
        return delete_objects(
            command_context(), [ObjectRef(kind, each) for each in names], NamespaceScope(), yes=yes, wait=wait
        )

    @group.command("list", cls=GlobalOptionsCommand, help=f"List {word}s with their quotas.")
    @output_options
    def list_(output_format: str, no_headers: bool) -> int:
        return list_queues(command_context(), kind, output_format, headers=not no_headers)

    return group


def _create(context: CommandContext, ref: ObjectRef, spec: Json, wait: bool) -> None:
    kind = ref.kind
    identity = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": ref.name}}

    async def create_and_wait(driver: StoreDriver) -> None:
        document = await driver.create(kind, Document({**identity, "spec": _without_nulls(spec)}))
        click.echo(f"{ref} created")
        if wait:
            await wait_until_ready(context, driver, ref, document.uid)

    context.run(create_and_wait)


def _update(context: CommandContext, ref: ObjectRef, spec: Json) -> None:
    async def patch(driver: StoreDriver) -> None:
        before = await driver.get(ref.kind, ref.name)
        after = await driver.patch(ref.kind, ref.name, "", {"spec": spec})
        click.echo(f"{ref} " + ("configured" if after.version != before.version else "unchanged"))

    context.run(patch)


def _without_nulls(value: Any) -> Any:
    """A merge patch as a new object: without the fields that it removes."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}


async def wait_until_ready(
    context: CommandContext, driver: StoreDriver, ref: ObjectRef, uid: str, timeout_s: float = READY_S
) -> None:
    since, notified = time.monotonic(), False
    while True:
        document = await driver.get(ref.kind, ref.name)
        status = document.data.get("status") or {}
        if status.get("phase") == "Ready" or document.uid != uid:
            return
        if status.get("phase") == "Failed":
            raise PlatformError(f"{ref} failed: {status.get('message') or 'no reason given'}", hint=_describe_hint(ref))
        waited = time.monotonic() - since
        if waited > timeout_s:
            raise Unavailable(f"{ref} was created but is not ready after {timeout_s:g} s", hint=_describe_hint(ref))
        if waited > _QUIET_S and not notified:
            notified = True
            context.note(f"waiting for {ref} to be ready")
        await asyncio.sleep(_POLL_S)


def _describe_hint(ref: ObjectRef) -> str:
    return f"see `aliquot describe {ref.kind.singular} {ref.name}`"


def list_queues(context: CommandContext, kind: AnyKind, output_format: str, *, headers: bool) -> int:
    """Print projects or departments with their quotas and allocations."""
    listing = context.run(lambda driver: driver.list(kind))
    documents = sorted(listing.items, key=lambda document: document.name)
    if output_format in ("json", "yaml"):
        click.echo(output.dump(list_object(documents), output_format))
    elif output_format == "name":
        for document in documents:
            click.echo(f"{kind.singular}/{document.name}")
    elif documents:
        columns = _columns(kind, context.settings.project, time.time(), wide=output_format == "wide")
        rows = [[show(document.data) for show in columns.values()] for document in documents]
        click.echo(output.table(list(columns), rows, headers=headers))
    else:
        context.note(f"No {kind.plural} yet. Make one with: aliquot {kind.singular} create NAME --gpu N")
    return 0


def _columns(kind: AnyKind, default: str, now: float, *, wide: bool) -> dict[str, Callable[[Json], str]]:
    def at(path: str, otherwise: Any = None) -> Callable[[Json], str]:
        return lambda data: output.cell(
            found if (found := output.jsonpath_value(data, path)) is not None else otherwise
        )

    def name(data: Json) -> str:
        own = str(data["metadata"]["name"])
        return f"{own} (default)" if kind.name == "Project" and own == default else own

    columns: dict[str, Callable[[Json], str]] = {kind.singular.upper(): name}
    if kind.name == "Project":
        columns["DEPARTMENT"] = at(".spec.department", "default")
    else:
        columns["PROJECTS"] = at(".status.projects", 0)
    columns["DESERVED GPUs"] = at(".spec.quota.gpu", 0)
    columns["ALLOCATED GPUs"] = at(".status.allocated.gpu", 0)
    if wide:
        columns["DESERVED CPUs"] = at(".spec.quota.cpu", "unlimited")
        columns["DESERVED MEMORY"] = at(".spec.quota.memory", "unlimited")
        columns["OVER QUOTA"] = at(".spec.overQuota", True)
    columns["STATUS"] = at(".status.phase")
    columns["AGE"] = lambda data: output.age_of(data["metadata"].get("creationTimestamp"), now)
    return columns


project = _queue_group(KINDS.named("project"))
department = _queue_group(KINDS.named("department"))


@project.command("set", cls=GlobalOptionsCommand)
@click.argument("name", metavar="NAME", shell_complete=complete_names("project"))
def set_default_project(name: str) -> None:
    """Set your default project."""
    context = command_context()

    async def check_exists(driver: StoreDriver) -> None:
        try:
            await driver.get(KINDS.named("project"), name)
        except NotFound:
            raise project_not_found(name) from None

    context.run(check_exists)
    context.save_default_project(name)
    click.echo(f"project {name} configured successfully")
