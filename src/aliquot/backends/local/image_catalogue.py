"""How images run without a container engine: the catalogue turns an image and a command into a program to start.

    Catalogue         the known images: catalogue.yaml next to this module, and a file of the user, which wins
    ResolvedCommand   program and arguments, folder, environment

The rule is that of containers: a command replaces the image's entrypoint, arguments replace its arguments. An image
that is not in the catalogue runs the command it is given; without a command there is nothing to run, and the error says
what to do. What runs is always a real program of this machine.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources, util
from pathlib import Path
from typing import Annotated

from pydantic import Field

from aliquot.api.field_types import EMPTY_MAP, Labels, Strings
from aliquot.api.serialization import record
from aliquot.backends.local import yaml_files
from aliquot.errors import Fault, Invalid

Which = Callable[[str], str | None]
Installed = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ResolvedCommand:
    """The program to start for a container."""

    argv: tuple[str, ...]
    # Empty: the pod's own folder.
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@record
class Program:
    """A program of this machine that replaces a program of the image."""

    argv: Annotated[Strings, Field(min_length=1)]
    """The program and its first arguments."""
    rewrite: Labels = EMPTY_MAP
    """Prefixes of arguments to replace, and their replacements."""
    module: str = ""
    """Python module that must be installed."""
    extra: str = ""
    """The extra of aliquot that installs the module."""


@record
class Image:
    """How an image runs."""

    names: Annotated[Strings, Field(min_length=1)]
    """Repositories, with or without registry and tag."""
    entrypoint: Strings = ()
    """The image's program."""
    arguments: Strings = ()
    """Arguments used when none are given; the whole command where there is no entrypoint."""
    env: Labels = EMPTY_MAP
    """Environment variables of the image."""
    working_dir: str = ""
    """Working directory; default: the pod's own folder."""
    programs: Mapping[str, Program] = EMPTY_MAP
    """Replacements for programs that this machine may not have, by name."""


@record
class Images:
    """A catalogue file."""

    images: tuple[Image, ...] = ()
    """The images."""

    def faults(self) -> Iterator[Fault]:
        seen: set[str] = set()
        for image_index, image in enumerate(self.images):
            for name_index, name in enumerate(image.names):
                path = f"images[{image_index}].names[{name_index}]"
                if not _NAME.fullmatch(name):
                    yield Fault(path, f"must be an image such as registry.example.com/team/train, not {name!r}")
                elif name in seen:
                    yield Fault(path, f"appears twice: {name!r}")
                seen.add(name)


# Loose on purpose: enough to catch typing errors.
_NAME = re.compile(r"[A-Za-z0-9][\w.:@/-]*")


def _is_installed(module: str) -> bool:
    return util.find_spec(module) is not None


class Catalogue:
    """The images that can run with the programs and Python modules of this machine.

    The user's file is read again when it changes, without a restart.
    """

    def __init__(
        self, file: Path | None = None, which: Which = shutil.which, installed: Installed = _is_installed
    ) -> None:
        self._file = file
        self._which = which
        self._installed = installed
        text = (resources.files("aliquot.backends.local") / "catalogue.yaml").read_text(encoding="utf-8")
        self._built_in = _by_name(yaml_files.parse(Images, text, "catalogue.yaml"))
        self._users: dict[str, Image] = {}
        self._stamp: tuple[int, int] | None = None
        self._refresh()

    def resolve(self, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> ResolvedCommand:
        """The command to start; `Invalid` when it is not known, or needs a module that is not installed."""
        entry = self.find(image)
        if entry is None:
            if not command:
                raise self._unknown(image)
            return ResolvedCommand(argv=(*command, *args))
        default = (*map(self._expanded, entry.entrypoint), *(args or map(self._expanded, entry.arguments)))
        argv = (*command, *args) if command else default
        if not argv:
            raise Invalid(f"image {image!r} has no program of its own", hint="say what to run with --command")
        return ResolvedCommand(argv=self._runnable(entry, argv), cwd=entry.working_dir, env=dict(entry.env))

    def find(self, image: str) -> Image | None:
        """The most specific entry for an image; the user's file wins over the built-in catalogue."""
        self._refresh()
        entries = (source.get(name) for source in (self._users, self._built_in) for name in spellings(image))
        return next((entry for entry in entries if entry is not None), None)

    def _runnable(self, image: Image, argv: tuple[str, ...]) -> tuple[str, ...]:
        name, *rest = argv
        program = image.programs.get(Path(name).name)  # a path inside the image counts as its last part
        if program is None or self._which(name):
            return argv
        self._check_module(name, program)
        return (*map(self._expanded, program.argv), *(_rewritten(word, program.rewrite) for word in rest))

    def _check_module(self, name: str, program: Program) -> None:
        if program.module and not self._installed(program.module):
            hint = f"pip install aliquot[{program.extra}]" if program.extra else f"install {program.module}"
            raise Invalid(f"{name} needs {program.module}, which is not installed", hint=hint)

    def _expanded(self, word: str) -> str:
        if word == "{python}":
            return sys.executable
        return self._which("python3") or sys.executable if word == "{python3}" else word

    def _unknown(self, image: str) -> Invalid:
        file = self._file or "images.yaml"
        return Invalid(
            f"image {image!r} is not in the catalogue, so how it starts is not known without a container engine",
            hint=f"give a command with --command, describe the image in {file}, or use containers or Kubernetes",
        )

    def _refresh(self) -> None:
        try:
            status = self._file.stat() if self._file else None
        except OSError:
            status = None  # usually there is no such file
        stamp = (status.st_mtime_ns, status.st_size) if status else None
        if stamp != self._stamp:
            self._users = _by_name(yaml_files.read(Images, self._file)) if self._file and stamp else {}
            self._stamp = stamp


def spellings(image: str) -> tuple[str, ...]:
    """Names that an image may be listed under, the most specific first.

    docker.io/library/python:3.11 -> itself, docker.io/library/python, library/python:3.11, ..., python
    """
    whole = image.strip().split("@", 1)[0]
    registry, _, rest = whole.partition("/")
    # Container engines tell a registry from a user in the same way: it has a dot or a port.
    bare = rest if rest and ("." in registry or ":" in registry or registry == "localhost") else whole
    short = bare.removeprefix("library/")
    names = (spelling for name in (whole, bare, short) for spelling in (name, _untagged(name)))
    return tuple(dict.fromkeys(names))


def _untagged(name: str) -> str:
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _by_name(images: Images) -> dict[str, Image]:
    """Entries by every name under which they are found: in full, and without the registry."""
    listed = [(name, image) for image in images.images for name in image.names]
    short = {name: image for full, image in reversed(listed) for name in _without_registry(full)}
    return short | dict(listed)


def _without_registry(name: str) -> tuple[str, ...]:
    return tuple(spelling for spelling in spellings(name) if _is_tagged(spelling) == _is_tagged(name))


def _is_tagged(name: str) -> bool:
    return _untagged(name) != name


def _rewritten(word: str, rules: Mapping[str, str]) -> str:
    for old, new in rules.items():
        if word.startswith(old):
            return new + word.removeprefix(old)
    return word
