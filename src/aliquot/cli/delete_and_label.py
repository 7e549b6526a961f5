"""`delete` and `label`, for objects of any kind."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import click

from aliquot.cli import output
from aliquot.cli.context import CommandContext, NamespaceScope, command_context, namespace_options
from aliquot.cli.object_refs import ObjectRef, object_arguments, parse_refs
from aliquot.cli.program import GlobalOptionsCommand
from aliquot.errors import Invalid, NotFound, PlatformError
from aliquot.store.driver import StoreDriver

# Kinds whose deletion affects other objects: the command asks for confirmation and names what else is affected.
CASCADES = {
    "Project": "and everything in it",
    "Department": "and with it the home of its projects",
    "NodePool": "and with it the quotas that name it",
    "Namespace": "and everything in it",
}
_POLL_S = 0.3
_QUIET_S = 2.0  # a shorter wait needs no message


@click.command(cls=GlobalOptionsCommand)
@object_arguments(many=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--wait", is_flag=True, help="Wait until the objects are gone.")
@namespace_options()
def delete(kind: str, names: tuple[str, ...], yes: bool, wait: bool, scope: NamespaceScope) -> int:
    """Delete objects by name."""
    return delete_objects(command_context(), parse_refs(kind, names), scope, yes=yes, wait=wait)


def delete_objects(
    context: CommandContext, refs: Sequence[ObjectRef], scope: NamespaceScope, *, yes: bool, wait: bool
) -> int:
    _confirm(refs, yes)
    failed = False

    async def work(driver: StoreDriver) -> None:
        nonlocal failed
        for ref in refs:
            try:
                namespace = scope.for_object(ref.kind, context.default_project(ref.kind))
                click.echo(f"{ref} {await _delete(context, driver, ref, namespace, wait)}")
            except PlatformError as exc:
                failed = True
                output.print_error(exc)

    context.run(work)
    return 1 if failed else 0


async def _delete(context: CommandContext, driver: StoreDriver, ref: ObjectRef, namespace: str, wait: bool) -> str:
    uid = (await driver.get(ref.kind, ref.name, namespace)).uid
    if await driver.delete(ref.kind, ref.name, namespace, uid=uid):
        return "deleted"
    if not wait:
        return "is being deleted"
    await wait_until_gone(context, driver, ref, namespace, uid)
    return "deleted"


async def wait_until_gone(
    context: CommandContext, driver: StoreDriver, ref: ObjectRef, namespace: str, uid: str
) -> None:
    """Wait until the object is gone. A new object with the same name counts as gone."""
    since, notified = time.monotonic(), False
    while True:
        try:
            document = await driver.get(ref.kind, ref.name, namespace)
        except NotFound:
            return
        if document.uid != uid:
            return
        if not notified and time.monotonic() - since > _QUIET_S:
            notified = True
            finalizers = document.metadata.get("finalizers")
            context.note(f"waiting for {ref} to go" + (f": {', '.join(finalizers)} to finish" if finalizers else ""))
        await asyncio.sleep(_POLL_S)


def _confirm(refs: Sequence[ObjectRef], yes: bool) -> None:
    affecting = [ref for ref in refs if ref.kind.name in CASCADES]
    if yes or not affecting:
        return
    names = ", ".join(map(str, affecting))
    if not sys.stdin.isatty():
        raise Invalid(f"deleting {names} needs confirmation", hint="add --yes to delete without being asked")
    if not click.confirm(f"Delete {names} {CASCADES[affecting[0].kind.name]}?", err=True):
        raise Invalid("nothing was deleted")


@click.command(cls=GlobalOptionsCommand)
@object_arguments(many=True)
@namespace_options()
def label(kind: str, names: tuple[str, ...], scope: NamespaceScope) -> int:
    """Set labels with KEY=VALUE and remove them with KEY-. Give the names first, then the labels."""
    context = command_context()
    labels = [argument for argument in names if _is_label(argument)]
    refs = parse_refs(kind, [argument for argument in names if argument not in labels])
    changes = label_changes(labels)

    async def work(driver: StoreDriver) -> None:
        for ref in refs:
            namespace = scope.for_object(ref.kind, context.default_project(ref.kind))
            patch = {"metadata": {"labels": changes}}
            before = await driver.get(ref.kind, ref.name, namespace)
            after = await driver.patch(ref.kind, ref.name, namespace, patch)
            click.echo(f"{ref} " + ("labeled" if after.version != before.version else "unchanged"))

    context.run(work)
    return 0


def _is_label(argument: str) -> bool:
    # A name can neither contain "=" nor end with "-".
    return "=" in argument or argument.endswith("-")


def label_changes(labels: Sequence[str]) -> dict[str, str | None]:
    """Parse `k=v`, which sets a label, and `k-`, which removes it: its value is None."""
    if not labels:
        raise click.UsageError("give labels as KEY=VALUE, or KEY- to remove one")
    changes: dict[str, str | None] = {}
    for label_text in labels:
        key, equals, value = label_text.partition("=")
        key = key if equals else label_text[:-1]
        if not key or key in changes:
            raise click.UsageError(f"{label_text!r}: give each label once, as KEY=VALUE or KEY-")
        changes[key] = value if equals else None
    return changes
