"""The `runai` program and the class of its commands. Imports click and nothing heavier, as all that `--help` needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from aliquot.cli.program import Program, Verb
from aliquot.cli.runai.argument_scan import COMMAND_WORDS, commands, scan

# Where a command finds what click does not parse: the words after "--", and the switches that were set to false.
REST = "aliquot.rest"
OFF = "aliquot.off"


class JobVerb(Verb):
    """A command in the classic grammar (see words.py)."""

    # After so many positionals all words belong to the user's own command; None: flags may stand anywhere.
    own_words: int | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        found = scan(args, takes_value(self.params), self.own_words)
        ctx.meta[REST] = found.rest
        ctx.meta[OFF] = {param.name for param in self.params if found.off & set(param.opts)}
        if not ctx.resilient_parsing:
            for warning in found.warnings:
                click.echo(warning, err=True)
            if found.wrong:
                from aliquot.errors import Invalid

                raise Invalid(f"{found.wrong[0]}: must be true or false, not {found.wrong[1]!r}")
        return super().parse_args(ctx, found.words)


class JobOrKind(JobVerb):
    """A command about jobs whose word also works on objects of any kind: then the general command takes over."""

    def __init__(
        self, *args: Any, general: click.Command, is_general: Callable[[Sequence[str]], bool], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._general = general
        self._is_general = is_general

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        words = scan(args, takes_value(self.params)).positionals
        if words and self._is_general(words):
            return self._general.make_context(info_name, args, parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


class Runai(Program):
    """The same tree under the name people know, with a few of their slips understood."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        meant = COMMAND_WORDS.get(cmd_name, cmd_name)
        if meant != cmd_name and not ctx.resilient_parsing:
            click.echo(f"warning: {cmd_name}: taken as {meant}", err=True)
        return super().get_command(ctx, meant)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]  # always standalone
        import sys

        arguments = list(sys.argv[1:] if args is None else args)
        *first, last = commands(arguments, self.name or "", takes_value(self.params))
        for each in first:
            try:
                super().main(each, prog_name, **extra)
            except SystemExit as exc:
                if exc.code:
                    raise  # the second command would run in the wrong project
        super().main(last, prog_name, **extra)


def takes_value(params: Sequence[click.Parameter]) -> Mapping[str, bool]:
    """Every flag of a command, and whether it has a value."""
    options = [param for param in params if isinstance(param, click.Option)]
    return {name: not option.is_flag and not option.count for option in options for name in option.opts}


def project_option(command: Any) -> Any:
    return click.option("-p", "--project", default="", metavar="NAME", help="Project; your default unless given.")(
        command
    )
