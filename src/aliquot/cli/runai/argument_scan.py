"""Rewrites the arguments of a classic `runai` command line into arguments that click parses.

The classic syntax differs from click's:

- a flag with a value takes the next argument, whatever it looks like (`--args --epochs=3`);
- `--flag=false` turns a switch off;
- `--command` takes a value or stands alone;
- arguments after `--` belong to the user's own program;
- a few misspellings that are printed in published documents are corrected, with a warning;
- a second command may follow `project set NAME` on the same line.

Pure functions on text; imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Stands for a `--command` without a value: the program is the first of the arguments after `--`.
ENTRYPOINT_FOLLOWS = "--entrypoint-follows"
COMMAND_CORRECTIONS = {"delte": "delete"}
_FLAG_CORRECTIONS = {"--large-shdm": "--large-shm", "--g": "-g"}
_OPTIONAL_VALUE_FLAGS = ("--command", "-c")
_LONG_DASHES = "–—"  # word processors turn "--" into these
_TRUE, _FALSE = ("true", "t", "1", "yes"), ("false", "f", "0", "no")


@dataclass
class ScannedArguments:
    # What click parses.
    arguments: list[str] = field(default_factory=list)
    # Those of `arguments` that are neither flags nor values of flags.
    positionals: list[str] = field(default_factory=list)
    # The arguments after a bare "--"; None when there is no "--".
    trailing: list[str] | None = None
    # Switches that were given as `--flag=false`.
    disabled: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    # (flag, value) of the first switch whose value is neither true nor false.
    invalid_switch: tuple[str, str] | None = None


def scan(args: Sequence[str], takes_value: Mapping[str, bool], max_positionals: int | None = None) -> ScannedArguments:
    """Scan the arguments of one command.

    `takes_value` lists every flag of the command. After `max_positionals` positional arguments the rest is trailing.
    """
    return _Scanner(list(args), takes_value, max_positionals).run()


class _Scanner:
    def __init__(self, args: list[str], takes_value: Mapping[str, bool], max_positionals: int | None) -> None:
        self._left = args
        self._takes_value = takes_value
        self._max_positionals = max_positionals
        self._result = ScannedArguments()

    def run(self) -> ScannedArguments:
        result = self._result
        while self._left:
            argument = self._left.pop(0)
            if argument == "--":
                result.trailing, self._left = self._left, []
                break
            argument = self._corrected(argument)
            if argument.startswith("--"):
                self._long_flag(argument)
            elif argument.startswith("-") and len(argument) > 1:
                self._short_flags(argument)
            elif len(result.positionals) == self._max_positionals:
                result.trailing, self._left = [argument, *self._left], []
            else:
                result.positionals.append(argument)
                result.arguments.append(argument)
        return result

    def _corrected(self, argument: str) -> str:
        """The argument with known misspellings of flags corrected; adds a warning where it changes."""
        corrected = argument
        if argument[0:1] and argument[0] in _LONG_DASHES:
            bare = argument.lstrip(_LONG_DASHES + "-")
            corrected = f"--{bare}" if len(bare.partition("=")[0]) > 1 else f"-{bare}"
        name, equals, value = corrected.partition("=")
        if name in _FLAG_CORRECTIONS and name not in self._takes_value:
            corrected = _FLAG_CORRECTIONS[name] + equals + value
        if corrected != argument:
            typed, flag = argument.partition("=")[0], corrected.partition("=")[0]
            self._result.warnings.append(f"warning: {typed}: taken as {flag}")
        return corrected

    def _long_flag(self, argument: str) -> None:
        result = self._result
        name, equals, value = argument.partition("=")
        if name in _OPTIONAL_VALUE_FLAGS and name in self._takes_value:
            self._optional_value_flag(value if equals else None)
        elif self._takes_value.get(name):
            if equals:
                result.arguments.append(argument)
            else:
                result.arguments.extend([name, *self._next()])
        elif equals and name in self._takes_value:
            self._switch(name, value)
        else:
            result.arguments.append(argument)

    def _short_flags(self, argument: str) -> None:
        """`-g 1`, `-g1`, `-g=1`, `-it`, `-itp team-a`."""
        if argument in _OPTIONAL_VALUE_FLAGS and argument in self._takes_value:
            self._optional_value_flag(None)
            return
        for position in range(1, len(argument)):
            flag = "-" + argument[position]
            if self._takes_value.get(flag):
                value = argument[position + 1 :].removeprefix("=")
                self._result.arguments.extend([flag, value] if value else [flag, *self._next()])
                return
            if argument[position + 1 : position + 2] == "=":
                self._switch(flag, argument[position + 2 :])
                return
            self._result.arguments.append(flag)

    def _optional_value_flag(self, value: str | None) -> None:
        if value is not None:
            self._result.arguments.append(f"--command={value}")
        elif self._left and self._left[0][:1] not in ("-", *_LONG_DASHES):
            self._result.arguments.append(f"--command={self._left.pop(0)}")
        else:
            self._result.arguments.append(ENTRYPOINT_FOLLOWS)

    def _switch(self, name: str, value: str) -> None:
        if value.lower() in _TRUE:
            self._result.arguments.append(name)
        elif value.lower() in _FALSE:
            self._result.disabled.add(name)
        else:
            self._result.invalid_switch = self._result.invalid_switch or (name, value)

    def _next(self) -> list[str]:
        return [self._left.pop(0)] if self._left else []


_SET_PROJECT_COMMANDS = (("project", "set"), ("config", "project"))


def split_commands(args: Sequence[str], program: str, takes_value: Mapping[str, bool]) -> list[list[str]]:
    """The commands of one line: `project set team-a runai submit ...` is two, both with the global options."""
    start = 0
    while start < len(args) and args[start].startswith("-"):
        start += 2 if takes_value.get(args[start]) else 1
    arguments = list(args[start:])
    if len(arguments) > 3 and tuple(arguments[:2]) in _SET_PROJECT_COMMANDS and arguments[3] == program:
        global_args = list(args[:start])
        return [global_args + arguments[:3], *([global_args + arguments[4:]] if arguments[4:] else [])]
    return [list(args)]
