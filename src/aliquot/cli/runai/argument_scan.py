"""A command line before click sees it: the classic grammar has habits that click does not share.

A value flag takes the next word whatever it looks like; `--flag=false` switches off; `--command` takes a value or
stands alone; words after `--` are the user's own; slips that are printed in documents people follow are understood;
and a whole second command may follow `project set NAME` on the same line.

Everything here is text in, text out; nothing is imported but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# `--command` standing alone becomes this flag: the program is among the words after `--`.
FOLLOWS = "--entrypoint-follows"
COMMAND_WORDS = {"delte": "delete"}
_FLAG_WORDS = {"--large-shdm": "--large-shm", "--g": "-g"}
_TWO_MODES = ("--command", "-c")
_LONG_DASHES = "–—"  # what text processors make of "--"
_TRUE, _FALSE = ("true", "t", "1", "yes"), ("false", "f", "0", "no")


@dataclass
class Scanned:
    """What click is given, and what it is not."""

    words: list[str] = field(default_factory=list)
    # Those of them that are neither flags nor their values.
    positionals: list[str] = field(default_factory=list)
    # What stands after a bare "--"; None when there is none.
    rest: list[str] | None = None
    # Switches that were given as `--flag=false`.
    off: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    # (flag, value) of a switch that was given something that is neither true nor false.
    wrong: tuple[str, str] | None = None


def scan(args: Sequence[str], takes_value: Mapping[str, bool], own_words: int | None = None) -> Scanned:
    """Read a command's words. `takes_value` has every flag; after `own_words` positionals the rest is the user's."""
    return _Scanner(list(args), takes_value, own_words).run()


class _Scanner:
    def __init__(self, args: list[str], takes_value: Mapping[str, bool], own_words: int | None) -> None:
        self._left = args
        self._takes_value = takes_value
        self._own_words = own_words
        self._found = Scanned()

    def run(self) -> Scanned:
        found = self._found
        while self._left:
            word = self._left.pop(0)
            if word == "--":
                found.rest, self._left = self._left, []
                break
            word = self._spelled(word)
            if word.startswith("--"):
                self._long(word)
            elif word.startswith("-") and len(word) > 1:
                self._short(word)
            elif len(found.positionals) == self._own_words:
                found.rest, self._left = [word, *self._left], []
            else:
                found.positionals.append(word)
                found.words.append(word)
        return found

    def _spelled(self, word: str) -> str:
        """The flag that was meant."""
        meant = word
        if word[0:1] and word[0] in _LONG_DASHES:
            bare = word.lstrip(_LONG_DASHES + "-")
            meant = f"--{bare}" if len(bare.partition("=")[0]) > 1 else f"-{bare}"
        name, equals, value = meant.partition("=")
        if name in _FLAG_WORDS and name not in self._takes_value:
            meant = _FLAG_WORDS[name] + equals + value
        if meant != word:
            self._found.warnings.append(f"warning: {word.partition('=')[0]}: taken as {meant.partition('=')[0]}")
        return meant

    def _long(self, word: str) -> None:
        found = self._found
        name, equals, value = word.partition("=")
        if name in _TWO_MODES and name in self._takes_value:
            self._two_modes(name, value if equals else None)
        elif self._takes_value.get(name):
            if equals:
                found.words.append(word)
            else:
                found.words.extend([name, *self._next()])
        elif equals and name in self._takes_value:
            self._switch(name, value)
        else:
            found.words.append(word)

    def _short(self, word: str) -> None:
        """`-g 1`, `-g1`, `-g=1`, `-it`, `-itp team-a`."""
        if word in _TWO_MODES and word in self._takes_value:
            self._two_modes(word, None)
            return
        for position in range(1, len(word)):
            flag = "-" + word[position]
            if self._takes_value.get(flag):
                value = word[position + 1 :].removeprefix("=")
                self._found.words.extend([flag, value] if value else [flag, *self._next()])
                return
            if word[position + 1 : position + 2] == "=":
                self._switch(flag, word[position + 2 :])
                return
            self._found.words.append(flag)

    def _two_modes(self, name: str, value: str | None) -> None:
        if value is not None:
            self._found.words.append(f"--command={value}")
        elif self._left and self._left[0][:1] not in ("-", *_LONG_DASHES):
            self._found.words.append(f"--command={self._left.pop(0)}")
        else:
            self._found.words.append(FOLLOWS)

    def _switch(self, name: str, value: str) -> None:
        if value.lower() in _TRUE:
            self._found.words.append(name)
        elif value.lower() in _FALSE:
            self._found.off.add(name)
        else:
            self._found.wrong = self._found.wrong or (name, value)

    def _next(self) -> list[str]:
        return [self._left.pop(0)] if self._left else []


_SETS_PROJECT = (("project", "set"), ("config", "project"))


def commands(args: Sequence[str], program: str, takes_value: Mapping[str, bool]) -> list[list[str]]:
    """The commands on one line: `project set team-a runai submit ...` is two, both with the global options."""
    start = 0
    while start < len(args) and args[start].startswith("-"):
        start += 2 if takes_value.get(args[start]) else 1
    words = list(args[start:])
    if len(words) > 3 and tuple(words[:2]) in _SETS_PROJECT and words[3] == program:
        head = list(args[:start])
        return [head + words[:3], *([head + words[4:]] if words[4:] else [])]
    return [list(args)]
