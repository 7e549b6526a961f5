"""The `runai` program and the class of its commands. Imports only click, so that `--help` starts fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from aliquot.cli.program import GlobalOptionsCommand, Program
from aliquot.cli.runai.argument_scan import COMMAND_CORRECTIONS, scan, split_commands

# Keys in click's `Context.meta` for what click does not parse: the arguments after "--" (None: there is no "--"), and
# the names of the switches that were set to false.
TRAILING_ARGUMENTS = "aliquot.trailing-arguments"
DISABLED_SWITCHES = "aliquot.disabled-switches"


class RunaiCommand(GlobalOptionsCommand):
    """A command in the classic argument syntax (see argument_scan.py)."""

    # After so many positional arguments the rest is the user's own command; None: flags may stand anywhere.
    max_positionals: int | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        scanned = scan(args, takes_value(self.params), self.max_positionals)
        ctx.meta[TRAILING_ARGUMENTS] = scanned.trailing
        ctx.meta[DISABLED_SWITCHES] = {param.name for param in self.params if scanned.disabled & set(param.opts)}
        if not ctx.resilient_parsing:
            for warning in scanned.warnings:
                click.echo(warning, err=True)
            if scanned.invalid_switch:
                from aliquot.errors import Invalid

                flag, value = scanned.invalid_switch
                raise Invalid(f"{flag}: must be true or false, not {value!r}")
        return super().parse_args(ctx, scanned.arguments)


class JobOrKindCommand(RunaiCommand):
    """A command about jobs. With the name of another kind as its argument, the command for any kind runs instead."""

    def __init__(
        self, *args: Any, kind_command: click.Command, is_for_kind: Callable[[Sequence[str]], bool], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._kind_command = kind_command
        self._is_for_kind = is_for_kind

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        positionals = scan(args, takes_value(self.params)).positionals
        if positionals and self._is_for_kind(positionals):
            return self._kind_command.make_context(info_name, args, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


class RunaiProgram(Program):
    """The program `runai`: corrects known misspellings of commands, and takes two commands on one line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        corrected = COMMAND_CORRECTIONS.get(cmd_name, cmd_name)
        if corrected != cmd_name and not ctx.resilient_parsing:
            click.echo(f"warning: {cmd_name}: taken as {corrected}", err=True)
        return super().get_command(ctx, corrected)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]  # always standalone
        import sys

        arguments = list(sys.argv[1:] if args is None else args)
        *first, last = split_commands(arguments, self.name or "", takes_value(self.params))
        for command in first:
            try:
                super().main(command, prog_name, **extra)
            except SystemExit as exc:
                if exc.code:
                    raise  # the second command would run in the wrong project
        super().main(last, prog_name, **extra)


def takes_value(params: Sequence[click.Parameter]) -> Mapping[str, bool]:
    """Every flag of a command, and whether it takes a value."""
    options = [param for param in params if isinstance(param, click.Option)]
    return {name: not option.is_flag and not option.count for option in options for name in option.opts}


def project_option(command: Any) -> Any:
    return click.option("-p", "--project", default="", metavar="NAME", help="Project; your default unless given.")(
        command
    )
