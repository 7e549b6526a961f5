"""References to objects on the command line: `project team-a`, or `project/team-a` as our own messages print it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from aliquot.api import KINDS
from aliquot.cli.shell_completion import complete_kinds, complete_names
from aliquot.errors import NotFound
from aliquot.store.driver import AnyKind


class ObjectRef(NamedTuple):
    kind: AnyKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.singular}/{self.name}"


def project_not_found(name: str) -> NotFound:
    return NotFound(f"project {name!r} does not exist", hint="`runai list projects` shows those there are")


def parse_refs(kind_or_ref: str, names: Sequence[str]) -> list[ObjectRef]:
    """Parse `KIND NAME...` or `KIND/NAME...`; a usage error when there is no name."""
    arguments = list(names)
    kind: AnyKind | None = None
    if "/" in kind_or_ref:
        arguments.insert(0, kind_or_ref)
    else:
        kind = KINDS.named(kind_or_ref)
    if not arguments:
        raise click.UsageError(f"which {kind_or_ref}? Give a name.")
    return [_parse_ref(kind, argument) for argument in arguments]


def _parse_ref(kind: AnyKind | None, argument: str) -> ObjectRef:
    kind_name, slash, name = argument.partition("/")
    if slash:
        return ObjectRef(KINDS.named(kind_name), name)
    if kind is None:
        raise click.UsageError(f"{argument!r}: write it as KIND/NAME")
    return ObjectRef(kind, argument)


def object_arguments(many: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the arguments KIND NAME, or KIND NAME..., which the command gets as `kind` and `names`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        metavar = "NAME..." if many else "NAME"
        names = click.argument("names", nargs=-1, metavar=metavar, shell_complete=complete_names())(command)
        return click.argument("kind", metavar="KIND", shell_complete=complete_kinds)(names)

    return decorate


def single_ref(refs: Sequence[ObjectRef]) -> ObjectRef:
    """The reference of a command that takes one object; a usage error for more."""
    if len(refs) != 1:
        raise click.UsageError(f"one object at a time, not {len(refs)}")
    return refs[0]
