"""The context of one command: the settings of the user, the server to connect to, and the namespace that is meant.

Commands are plain functions. A command that needs the server passes a coroutine function to `CommandContext.run`.
Tests replace `CommandContext.opener` with a function that opens any other `Server`.
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
from aliquot.client.connection import START_HINT, TOKEN_HINT, Connection, ServerOptions, data_folder, find_server
from aliquot.client.settings import Settings, load_settings, save_settings, settings_file
from aliquot.errors import Invalid, Unauthenticated, Unavailable
from aliquot.labels import namespace_of
from aliquot.store.driver import AnyKind

T = TypeVar("T")
Opener = Callable[[Connection], AbstractAsyncContextManager[Server]]


@dataclass
class CommandContext:
    """Settings and connection of the command that runs. Both are read when they are first used."""

    server_flags: ServerOptions = field(default_factory=ServerOptions)
    settings_path: Path = field(default_factory=settings_file)
    quiet: bool = False
    opener: Opener = connect

    @cached_property
    def settings(self) -> Settings:
        return load_settings(self.settings_path)

    @cached_property
    def connection(self) -> Connection:
        return find_server(self.server_flags, self.settings)

    @property
    def data_dir(self) -> Path:
        return data_folder(self.server_flags.data_dir)

    def run(self, operation: Callable[[Server], Awaitable[T]]) -> T:
        """Connect to the server, run the operation and return its result."""

        connection = self.connection

        async def connect_and_run() -> T:
            async with self.opener(connection) as server:
                return await operation(server)

        try:
            return asyncio.run(connect_and_run())
        except (Unavailable, Unauthenticated) as exc:
            _add_hint(exc)
            raise

    def note(self, text: str) -> None:
        """Print a message for people on stderr, unless --quiet is given."""
        if not self.quiet:
            click.echo(text, err=True)

    def default_project(self, kind: AnyKind) -> str:
        """The user's default project for a kind that has namespaces; "" for others, without reading the settings."""
        return self.settings.project if kind.namespaced else ""

    def save_default_project(self, project: str) -> None:
        save_settings(self.settings_path, project=project)
        self.__dict__.pop("settings", None)


def _add_hint(error: Unavailable | Unauthenticated) -> None:
    """Add a hint for the command line to an error that has none."""
    if isinstance(error, Unauthenticated):
        error.hint = error.hint or TOKEN_HINT
    elif not error.sent:
        error.hint = error.hint or START_HINT


def command_context(ctx: click.Context | None = None) -> CommandContext:
    """The context of the running command, from click's context object or else from the global options."""
    ctx = ctx or click.get_current_context()
    if isinstance(ctx.obj, CommandContext):
        return ctx.obj
    options: dict[str, Any] = ctx.meta.get(GLOBALS, {})
    return CommandContext(
        server_flags=ServerOptions(options.get("url", ""), options.get("token_file", ""), options.get("data_dir", "")),
        settings_path=settings_file(options.get("config_path", ""), options.get("config_file", "")),
        quiet=bool(options.get("quiet")) or options.get("loglevel") in ("warn", "error"),
    )


@dataclass(frozen=True)
class NamespaceScope:
    """What -n, -p and -A select: one namespace, the namespace of one project, or all namespaces."""

    namespace: str = ""
    project: str = ""
    all_namespaces: bool = False

    def __post_init__(self) -> None:
        if bool(self.namespace) + bool(self.project) + self.all_namespaces > 1:
            raise click.UsageError("give one of --namespace, --project and --all-namespaces")

    def for_object(self, kind: AnyKind, default_project: str) -> str:
        """The namespace of one object of a kind; "" for a kind that has no namespace."""
        if not kind.namespaced:
            return ""
        namespace = self.namespace or (namespace_of(self.project) if self.project else "")
        if not namespace and default_project:
            namespace = namespace_of(default_project)
        if not namespace:
            raise Invalid(
                f"a {kind.singular} lives in a project: which one?",
                hint="give -p PROJECT, or set a default with `aliquot project set PROJECT`",
            )
        return namespace

    def for_list(self, kind: AnyKind, default_project: str) -> str | None:
        """The namespace to list; None for all namespaces."""
        if self.all_namespaces or not kind.namespaced:
            return None
        if not (self.namespace or self.project or default_project):
            raise Invalid(
                f"{kind.plural} live in projects: which one?",
                hint="give -p PROJECT, -A for all, or set a default with `aliquot project set PROJECT`",
            )
        return self.for_object(kind, default_project)


def namespace_options(all_namespaces: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add -p and -n, and -A where `all_namespaces` is set; the command gets them as `scope`."""
    with_all = all_namespaces

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*, namespace: str, project: str, all_namespaces: bool = False, **rest: Any) -> Any:
            return command(scope=NamespaceScope(namespace, project, all_namespaces), **rest)

        wrapped.__doc__ = command.__doc__
        wrapped.__name__ = command.__name__
        wrapped.__dict__.update(command.__dict__)  # the options that click has attached so far
        if with_all:
            wrapped = click.option(
                "-A", "--all-namespaces", "--all-projects", "all_namespaces", is_flag=True, help="In every project."
            )(wrapped)
        wrapped = click.option("-n", "--namespace", default="", metavar="NAME", help="In this namespace.")(wrapped)
        return click.option(
            "-p", "--project", default="", metavar="NAME", help="In this project (its namespace is runai-NAME)."
        )(wrapped)

    return decorate
