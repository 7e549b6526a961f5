"""`delete` and `label`: changes to objects of any kind, by name."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import click

from aliquot.cli import output
from aliquot.cli.program import Verb
from aliquot.cli.session import Place, Session, place_options, session
from aliquot.cli.targets import Target, object_arguments, targets
from aliquot.errors import Invalid, NotFound, PlatformError
from aliquot.store.driver import StoreDriver

# What goes with an object of these kinds is not seen in the command that deletes it.
HOLDS_OTHERS = {
    "Project": "and everything in it",
    "Department": "and with it the home of its projects",
    "NodePool": "and with it the quotas that name it",
    "Namespace": "and everything in it",
}
_POLL_S = 0.3
_QUIET_S = 2.0  # waiting shorter than this needs no words


@click.command(cls=Verb)
@object_arguments(many=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", is_flag=True, help="Come back when the objects are gone.")
@place_options()
def delete(kind: str, names: tuple[str, ...], yes: bool, wait: bool, place: Place) -> int:
    """Delete objects by name."""
    return delete_all(session(), targets(kind, names), place, yes=yes, wait=wait)


def delete_all(here: Session, wanted: Sequence[Target], place: Place, *, yes: bool, wait: bool) -> int:
    _ask(wanted, yes)
    failed = False

    async def work(driver: StoreDriver) -> None:
        nonlocal failed
        for target in wanted:
            try:
                namespace = place.one(target.kind, here.settings.project if target.kind.namespaced else "")
                click.echo(f"{target} {await _delete(here, driver, target, namespace, wait)}")
            except PlatformError as exc:
                failed = True
                output.fail(exc)

    here.run(work)
    return 1 if failed else 0


async def _delete(here: Session, driver: StoreDriver, target: Target, namespace: str, wait: bool) -> str:
    uid = (await driver.get(target.kind, target.name, namespace)).uid
    if await driver.delete(target.kind, target.name, namespace, uid=uid):
        return "deleted"
    if not wait:
        return "is being deleted"
    await wait_until_gone(here, driver, target, namespace, uid)
    return "deleted"


async def wait_until_gone(here: Session, driver: StoreDriver, target: Target, namespace: str, uid: str) -> None:
    """Until the object is gone, or another one has its name."""
    since, said = time.monotonic(), False
    while True:
        try:
            document = await driver.get(target.kind, target.name, namespace)
        except NotFound:
            return
        if document.uid != uid:
            return
        if not said and time.monotonic() - since > _QUIET_S:
            said = True
            holders = document.metadata.get("finalizers")
            here.note(f"waiting for {target} to go" + (f": {', '.join(holders)} to finish" if holders else ""))
        await asyncio.sleep(_POLL_S)


def _ask(wanted: Sequence[Target], yes: bool) -> None:
    grave = [target for target in wanted if target.kind.name in HOLDS_OTHERS]
    if yes or not grave:
        return
    names = ", ".join(map(str, grave))
    if not sys.stdin.isatty():
        raise Invalid(f"deleting {names} needs a yes", hint="add --yes when nobody is there to ask")
    if not click.confirm(f"Delete {names} {HOLDS_OTHERS[grave[0].kind.name]}?", err=True):
        raise Invalid("nothing was deleted")


@click.command(cls=Verb)
@object_arguments(many=True)
@place_options()
def label(kind: str, names: tuple[str, ...], place: Place) -> int:
    """Set labels with KEY=VALUE, remove them with KEY-. Takes names first, then labels."""
    here = session()
    words = [word for word in names if _is_change(word)]
    wanted = targets(kind, [word for word in names if word not in words])
    changes = label_changes(words)

    async def work(driver: StoreDriver) -> None:
        for target in wanted:
            namespace = place.one(target.kind, here.settings.project if target.kind.namespaced else "")
            patch = {"metadata": {"labels": changes}}
            before = await driver.get(target.kind, target.name, namespace)
            after = await driver.patch(target.kind, target.name, namespace, patch)
            click.echo(f"{target} " + ("labeled" if after.version != before.version else "unchanged"))

    here.run(work)
    return 0


def _is_change(word: str) -> bool:
    # A name can hold neither "=" nor end with "-".
    return "=" in word or word.endswith("-")


def label_changes(words: Sequence[str]) -> dict[str, str | None]:
    """`k=v` sets, `k-` removes."""
    if not words:
        raise click.UsageError("give labels as KEY=VALUE, or KEY- to remove one")
    changes: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key if equals else word[:-1]
        if not key or key in changes:
            raise click.UsageError(f"{word!r}: give each label once, as KEY=VALUE or KEY-")
        changes[key] = value if equals else None
    return changes
