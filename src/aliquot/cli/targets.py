"""Which objects a command line names, and the completion of those words in the shell.

An object is named as `project team-a` or, as our own messages print it, `project/team-a`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from aliquot.api import KINDS
from aliquot.cli.session import Place, session
from aliquot.errors import NotFound, PlatformError
from aliquot.store.driver import AnyKind, StoreDriver

# A shell that waits longer for a key press feels broken.
_PATIENCE = 2.0

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


class Target(NamedTuple):
    kind: AnyKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.singular}/{self.name}"


def no_such_project(name: str) -> NotFound:
    return NotFound(f"project {name!r} does not exist", hint="`runai list projects` shows those there are")


def targets(word: str, names: Sequence[str]) -> list[Target]:
    """What `KIND NAME...` or `KIND/NAME...` means; a usage error when no name is given."""
    words = list(names)
    kind: AnyKind | None = None
    if "/" in word:
        words.insert(0, word)
    else:
        kind = KINDS.named(word)
    if not words:
        raise click.UsageError(f"which {word}? Give a name.")
    return [_target(kind, each) for each in words]


def _target(kind: AnyKind | None, word: str) -> Target:
    named, slash, name = word.partition("/")
    if slash:
        return Target(KINDS.named(named), name)
    if kind is None:
        raise click.UsageError(f"{word!r}: write it as KIND/NAME")
    return Target(kind, word)


def object_arguments(many: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """KIND NAME, or KIND NAME..., handed to the command as `kind` and `names`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        metavar = "NAME..." if many else "NAME"
        names = click.argument("names", nargs=-1, metavar=metavar, shell_complete=complete_names())(command)
        return click.argument("kind", metavar="KIND", shell_complete=complete_kinds)(names)

    return decorate


def only(found: Sequence[Target]) -> Target:
    """The one object that a command takes."""
    if len(found) != 1:
        raise click.UsageError(f"one object at a time, not {len(found)}")
    return found[0]


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    done, comma, rest = incomplete.rpartition(",")
    return [CompletionItem(f"{done}{comma}{kind.plural}") for kind in KINDS if kind.plural.startswith(rest)]


def complete_names(word: str = "") -> Completer:
    """Names of the objects of a kind: the one given here, or the one typed before."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        try:
            names = _names(ctx, word)
        except (PlatformError, OSError, TimeoutError, click.UsageError):
            return []  # no server, no answer: the shell simply has nothing to offer
        taken = ctx.params.get("names") or ()
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in taken]

    return complete


def _names(ctx: click.Context, word: str) -> list[str]:
    kind = KINDS.named(word or str(ctx.params.get("kind") or ctx.params.get("kinds")))
    here = session(ctx)
    place = Place(ctx.params.get("namespace") or "", ctx.params.get("project") or "")

    async def ask(driver: StoreDriver) -> list[str]:
        async with asyncio.timeout(_PATIENCE):
            listing = await driver.list(kind, place.many(kind, here.settings.project))
        return sorted({document.name for document in listing.items})

    return here.run(ask)
