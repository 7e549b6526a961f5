"""The click classes that all of our programs share.

    Program               the outermost group; prints every error as one line and exits with the right status
    LazyGroup             a group whose commands are a table; imports a command's module when the command runs
    GlobalOptionsCommand  a command that also accepts the global options after its own name

This module imports only click, so that `--help` starts fast.

Exit status: 0 success, 1 any error, 2 wrong usage, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import click

# The key in click's `Context.meta` that holds the global options, wherever on the line they were given.
GLOBALS = "aliquot.globals"


class CommandSpec(NamedTuple):
    """One command of a table: where its code is, and its line in the help, which needs no import."""

    module: str
    attribute: str
    help: str
    hidden: bool = False


CommandTable = Mapping[str, CommandSpec]


def _store_global(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        ctx.meta.setdefault(GLOBALS, {})[param.name] = value


_LEVELS = click.Choice(["debug", "info", "warn", "error"])


def global_options(hidden: bool) -> list[click.Option]:
    """New option objects on each call: click ties an option to one command."""

    def option(*names: str, help: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_store_global, hidden=hidden, help=help, **more)

    return [
        option("--url", metavar="URL", help="Server to talk to; else ALIQUOT_URL, else the one on this machine."),
        option("--token-file", metavar="FILE", help="File with the access token; else ALIQUOT_TOKEN[_FILE]."),
        option("--data-dir", metavar="DIR", help="Data folder of the server on this machine; else ALIQUOT_DATA_DIR."),
        option("--config-path", metavar="DIR", help="Folder of your settings; else RUNAI_CLI_CONFIG_PATH."),
        option("--config-file", metavar="NAME", help="File of your settings; else RUNAI_CLI_CONFIG_FILE."),
        option("-q", "--quiet", is_flag=True, help="Do not print progress and notes."),
        option("-d", "--debug", is_flag=True, help="Show the traceback of an error."),
        option("--loglevel", metavar="LEVEL", type=_LEVELS, help="debug, info, warn or error; info."),
    ]


class GlobalOptionsCommand(click.Command):
    """A command whose name may be followed by global options, because that is where people type them."""

    def __init__(self, *args: Any, visible_globals: Sequence[str] = (), **kwargs: Any) -> None:
        """`visible_globals` names the global options that this command's own help lists too."""
        super().__init__(*args, **kwargs)
        taken = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        for option in global_options(hidden=True):
            option.opts = [name for name in option.opts if name not in taken]
            option.hidden = not set(option.opts) & set(visible_globals)
            if option.opts:
                self.params.append(option)


class LazyGroup(click.Group):
    """A group from a table."""

    command_class = GlobalOptionsCommand

    def __init__(self, name: str | None = None, table: CommandTable | None = None, **more: Any) -> None:
        more.setdefault("no_args_is_help", True)
        super().__init__(name, **more)
        self.table: CommandTable = table or {}
        # The names are known before any import, so that click can suggest the closest one for a typo.
        self.commands = dict.fromkeys(self.table)  # type: ignore[assignment]  # filled in by get_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        spec = self.table.get(cmd_name)
        if spec is None:
            return None
        command: click.Command = getattr(import_module(spec.module), spec.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, spec.help) for name, spec in self.table.items() if not spec.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        items: list[Any] = [
            CompletionItem(name, help=spec.help)
            for name, spec in self.table.items()
            if name.startswith(incomplete) and not spec.hidden
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)


class Program(LazyGroup):
    """The outermost group. It raises nothing but SystemExit."""

    def __init__(self, name: str, table: CommandTable, **more: Any) -> None:
        more.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(name, table, params=global_options(hidden=False), **more)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]  # always standalone
        arguments = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        try:
            status = super().main(arguments, prog_name or self.name, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BaseException as error:
            if isinstance(error, SystemExit):
                raise
            status = _print_error(error, debug=_wants_debug(arguments))
        sys.exit(status if isinstance(status, int) else 0)


def _wants_debug(arguments: Sequence[str]) -> bool:
    # Read from the raw arguments, because an error may occur before they are parsed.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    short = "-d" in own and "top" not in own  # in `top node -d` it means --details
    return short or "--debug" in own or "--loglevel=debug" in own or ("--loglevel", "debug") in pairwise(own)


def _print_error(error: BaseException, *, debug: bool) -> int:
    """Print the error on stderr and return the exit status."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return 130
    if isinstance(error, click.ClickException):
        return _print_click_error(error)
    if isinstance(error, BrokenPipeError):
        # The reader of our stdout has closed it. Without this the interpreter flushes stdout at exit and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if debug:
        import traceback

        traceback.print_exception(error)
    from aliquot.cli.output import print_error

    return print_error(error)


def _print_click_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    click.echo(f"error: {error.format_message()}", err=True)
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and ctx is not None:
        click.echo(f"hint: see `{ctx.command_path} --help`", err=True)
    return error.exit_code
