"""One run of a command: which server it talks to, and on whose behalf.

Commands are plain functions; those that talk to the server hand a piece of async work to `Session.run`. The seam for
tests is `opener`: anything that opens a `Server` will do, and no command can tell the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click

from aliquot.cli.program import GLOBALS
from aliquot.client import Server, connect
from aliquot.client.connection import START_HINT, TOKEN_HINT, Asked, Connection, data_folder, find
from aliquot.client.settings import Settings, load, save, settings_file
from aliquot.errors import Invalid, Unauthenticated, Unavailable
from aliquot.labels import namespace_of
from aliquot.store.driver import AnyKind

T = TypeVar("T")
Opener = Callable[[Connection], AbstractAsyncContextManager[Server]]


@dataclass
class Session:
    asked: Asked = field(default_factory=Asked)
    settings_path: Path = field(default_factory=settings_file)
    quiet: bool = False
    opener: Opener = connect

    @cached_property
    def settings(self) -> Settings:
        return load(self.settings_path)

    @cached_property
    def connection(self) -> Connection:
        return find(self.asked, self.settings)

    @property
    def data_dir(self) -> Path:
        return data_folder(self.asked.data_dir)

    def run(self, work: Callable[[Server], Awaitable[T]]) -> T:
        """Do some work against the server."""

        connection = self.connection

        async def go() -> T:
            async with self.opener(connection) as server:
                return await work(server)

        try:
            return asyncio.run(go())
        except (Unavailable, Unauthenticated) as exc:
            _add_hint(exc)
            raise

    def note(self, text: str) -> None:
        """Say something that is not data."""
        if not self.quiet:
            click.echo(text, err=True)

    def remember_project(self, project: str) -> None:
        save(self.settings_path, project=project)
        self.__dict__.pop("settings", None)


def _add_hint(error: Unavailable | Unauthenticated) -> None:
    """What helps on a command line, where the server said nothing better."""
    if isinstance(error, Unauthenticated):
        error.hint = error.hint or TOKEN_HINT
    elif not error.sent:
        error.hint = error.hint or START_HINT


def session(ctx: click.Context | None = None) -> Session:
    """The session of the command that is running."""
    ctx = ctx or click.get_current_context()
    if isinstance(ctx.obj, Session):
        return ctx.obj
    given: dict[str, Any] = ctx.meta.get(GLOBALS, {})
    return Session(
        asked=Asked(given.get("url", ""), given.get("token_file", ""), given.get("data_dir", "")),
        settings_path=settings_file(given.get("config_path", ""), given.get("config_file", "")),
        quiet=bool(given.get("quiet")) or given.get("loglevel") in ("warn", "error"),
    )


@dataclass(frozen=True)
class Place:
    """Where the user wants to look: one namespace, one project, or everywhere."""

    namespace: str = ""
    project: str = ""
    everywhere: bool = False

    def __post_init__(self) -> None:
        if bool(self.namespace) + bool(self.project) + self.everywhere > 1:
            raise click.UsageError("give one of --namespace, --project and --all-namespaces")

    def one(self, kind: AnyKind, default_project: str) -> str:
        """The namespace of one object of a kind; "" for kinds that span the cluster."""
        if not kind.namespaced:
            return ""
        found = self.namespace or (namespace_of(self.project) if self.project else "")
        if not found and default_project:
            found = namespace_of(default_project)
        if not found:
            raise Invalid(
                f"a {kind.singular} lives in a project: which one?",
                hint="give -p PROJECT, or set a default with `aliquot project set PROJECT`",
            )
        return found

    def many(self, kind: AnyKind, default_project: str) -> str | None:
        """The namespace to list; None for every one."""
        if self.everywhere or not kind.namespaced:
            return None
        if not (self.namespace or self.project or default_project):
            raise Invalid(
                f"{kind.plural} live in projects: which one?",
                hint="give -p PROJECT, -A for all, or set a default with `aliquot project set PROJECT`",
            )
        return self.one(kind, default_project)


def place_options(everywhere: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """-p, -n and perhaps -A, handed to the command as `place`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*, namespace: str, project: str, all_namespaces: bool = False, **rest: Any) -> Any:
            return command(place=Place(namespace, project, all_namespaces), **rest)

        wrapped.__doc__ = command.__doc__
        wrapped.__name__ = command.__name__
        wrapped.__dict__.update(command.__dict__)  # options that click has noted so far
        if everywhere:
            wrapped = click.option(
                "-A", "--all-namespaces", "--all-projects", "all_namespaces", is_flag=True, help="In every project."
            )(wrapped)
        wrapped = click.option("-n", "--namespace", default="", metavar="NAME", help="In this namespace.")(wrapped)
        return click.option(
            "-p", "--project", default="", metavar="NAME", help="In this project (its namespace is runai-NAME)."
        )(wrapped)

    return decorate
