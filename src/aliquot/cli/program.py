"""What every command line program of ours shares: late loading, options that work anywhere, errors in one line.

    Program   the outermost group; turns every error into a line and an exit status
    Lazy      a group whose commands are a table; a command's module is imported when the command runs
    Verb      a command that also takes the global options after its own name

This module imports click and nothing heavier: `--help` is all that many calls ask for.

Exit status: 0 done, 1 any error, 2 what the parser rejects, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import click

# Where the global options land in the context, whichever level they were given on.
GLOBALS = "aliquot.globals"


class Entry(NamedTuple):
    """One command in a table: where its code is, and the line that help shows without loading it."""

    module: str
    attribute: str
    help: str
    hidden: bool = False


Table = Mapping[str, Entry]


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        ctx.meta.setdefault(GLOBALS, {})[param.name] = value


_LEVELS = click.Choice(["debug", "info", "warn", "error"])


def global_options(hidden: bool) -> list[click.Option]:
    """New option objects each time: click ties an option to one command."""

    def option(*names: str, help: str, **more: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_remember, hidden=hidden, help=help, **more)

    return [
        option("--url", metavar="URL", help="Server to talk to; else ALIQUOT_URL, else the one on this machine."),
        option("--token-file", metavar="FILE", help="File with the access token; else ALIQUOT_TOKEN[_FILE]."),
        option("--data-dir", metavar="DIR", help="Data folder of the server on this machine; else ALIQUOT_DATA_DIR."),
        option("--config-path", metavar="DIR", help="Folder of your settings; else RUNAI_CLI_CONFIG_PATH."),
        option("--config-file", metavar="NAME", help="File of your settings; else RUNAI_CLI_CONFIG_FILE."),
        option("-q", "--quiet", is_flag=True, help="No progress and no notes."),
        option("-d", "--debug", is_flag=True, help="Show the traceback of an error."),
        option("--loglevel", metavar="LEVEL", type=_LEVELS, help="debug, info, warn or error; info."),
    ]


class Verb(click.Command):
    """A command. Global options may follow its name, as people type them there."""

    def __init__(self, *args: Any, shown: Sequence[str] = (), **kwargs: Any) -> None:
        """`shown` names the global options that this command's own help explains too."""
        super().__init__(*args, **kwargs)
        taken = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        for option in global_options(hidden=True):
            option.opts = [name for name in option.opts if name not in taken]
            option.hidden = not set(option.opts) & set(shown)
            if option.opts:
                self.params.append(option)


class Lazy(click.Group):
    """A group from a table."""

    command_class = Verb

    def __init__(self, name: str | None = None, table: Table | None = None, **more: Any) -> None:
        more.setdefault("no_args_is_help", True)
        super().__init__(name, **more)
        self.table: Table = table or {}
        # Known before loading, so that click can suggest the word that was meant.
        self.commands = dict.fromkeys(self.table)  # type: ignore[assignment]  # filled in by get_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(import_module(entry.module), entry.attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, entry.help) for name, entry in self.table.items() if not entry.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        words: list[Any] = [
            CompletionItem(name, help=entry.help)
            for name, entry in self.table.items()
            if name.startswith(incomplete) and not entry.hidden
        ]
        return words + click.Command.shell_complete(self, ctx, incomplete)


class Program(Lazy):
    """The outermost group. Nothing but an exit leaves it."""

    def __init__(self, name: str, table: Table, **more: Any) -> None:
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
            status = _report(error, debug=_debug(arguments))
        sys.exit(status if isinstance(status, int) else 0)


def _debug(arguments: Sequence[str]) -> bool:
    # Read from the words themselves: an error may come before anything was parsed.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    short = "-d" in own and "top" not in own  # `top node -d` asks for details
    return short or "--debug" in own or "--loglevel=debug" in own or _follows(own, "--loglevel", "debug")


def _follows(words: Sequence[str], flag: str, value: str) -> bool:
    return any(pair == (flag, value) for pair in pairwise(words))


def _report(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong on stderr; the exit status."""
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return 130
    if isinstance(error, click.ClickException):
        return _report_click(error)
    if isinstance(error, BrokenPipeError):
        # The reader has gone. The interpreter would still flush stdout at its end and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if debug:
        import traceback

        traceback.print_exception(error)
    from aliquot.cli.output import fail

    return fail(error)


def _report_click(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    click.echo(f"error: {error.format_message()}", err=True)
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        click.echo(f"hint: see `{context.command_path} --help`", err=True)
    return error.exit_code
