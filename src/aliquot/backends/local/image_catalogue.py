"""How images run without a container engine: the catalogue turns an image and a command into what is started.

    Catalogue   what is known: catalogue.yaml beside this module, and a file of the user's, which wins
    Resolved    program and arguments, folder, environment

The rule is the one of containers: a command replaces the image's entrypoint, arguments replace its arguments. An
image nobody described runs whatever command it is given; without one there is nothing to run, and the error says
what to do. Nothing here pretends: what runs is a real program of this machine.
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
    """What is started for a container."""

    argv: tuple[str, ...]
    # Empty: the pod's own folder.
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@record
class Program:
    """What runs instead of a program of the image."""

    argv: Annotated[Strings, Field(min_length=1)]
    """The program and its first arguments."""
    rewrite: Labels = EMPTY_MAP
    """Old beginnings of arguments, and the new ones."""
    module: str = ""
    """Python module that must be there."""
    extra: str = ""
    """The extra of aliquot that brings the module."""


@record
class Image:
    """How some images run."""

    names: Annotated[Strings, Field(min_length=1)]
    """Repositories, with or without registry and tag."""
    entrypoint: Strings = ()
    """The image's program."""
    arguments: Strings = ()
    """Its arguments when none are given; a whole command where there is no entrypoint."""
    env: Labels = EMPTY_MAP
    """Variables that the image sets."""
    working_dir: str = ""
    """Where it starts; the pod's own folder unless given."""
    programs: Mapping[str, Program] = EMPTY_MAP
    """Stand-ins for programs that this machine does not have."""


@record
class Images:
    """What a file describes."""

    images: tuple[Image, ...] = ()
    """Each with its names."""

    def faults(self) -> Iterator[Fault]:
        seen: set[str] = set()
        for place, image in enumerate(self.images):
            for nth, name in enumerate(image.names):
                path = f"images[{place}].names[{nth}]"
                if not _NAME.fullmatch(name):
                    yield Fault(path, f"must be an image such as registry.example.com/team/train, not {name!r}")
                elif name in seen:
                    yield Fault(path, f"stands twice: {name!r}")
                seen.add(name)


# Loose on purpose: enough to tell a slip of the finger from a name.
_NAME = re.compile(r"[A-Za-z0-9][\w.:@/-]*")


def _is_installed(module: str) -> bool:
    return util.find_spec(module) is not None


class Catalogue:
    """Every image we can run, given the programs and Python modules of this machine. The user's file is read
    again when it changes, so that nothing need be restarted."""

    def __init__(
        self, file: Path | None = None, which: Which = shutil.which, installed: Installed = _is_installed
    ) -> None:
        self._file = file
        self._which = which
        self._installed = installed
        text = (resources.files("aliquot.backends.local") / "catalogue.yaml").read_text(encoding="utf-8")
        self._ours = _by_name(yaml_files.parse(Images, text, "catalogue.yaml"))
        self._theirs: dict[str, Image] = {}
        self._stamp: tuple[int, int] | None = None
        self._refresh()

    def resolve(self, image: str, command: Sequence[str] = (), args: Sequence[str] = ()) -> ResolvedCommand:
        """What to start; `Invalid` when that is not known, or needs what is not installed."""
        found = self.find(image)
        if found is None:
            if not command:
                raise self._unknown(image)
            return ResolvedCommand(argv=(*command, *args))
        theirs = (*map(self._expanded, found.entrypoint), *(args or map(self._expanded, found.arguments)))
        argv = (*command, *args) if command else theirs
        if not argv:
            raise Invalid(f"image {image!r} has no program of its own", hint="say what to run with --command")
        return ResolvedCommand(argv=self._runnable(found, argv), cwd=found.working_dir, env=dict(found.env))

    def find(self, image: str) -> Image | None:
        """The most exact entry for an image; the user's file before ours."""
        self._refresh()
        known = (source.get(name) for source in (self._theirs, self._ours) for name in spellings(image))
        return next((entry for entry in known if entry is not None), None)

    def _runnable(self, image: Image, argv: tuple[str, ...]) -> tuple[str, ...]:
        name, *rest = argv
        program = image.programs.get(Path(name).name)  # also for those who know where it is in the image
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
            found = self._file.stat() if self._file else None
        except OSError:
            found = None  # no such file is the usual case
        stamp = (found.st_mtime_ns, found.st_size) if found else None
        if stamp != self._stamp:
            self._theirs = _by_name(yaml_files.read(Images, self._file)) if self._file and stamp else {}
            self._stamp = stamp


def spellings(image: str) -> tuple[str, ...]:
    """Names an image may be listed under, the most exact first.

    docker.io/library/python:3.11 -> itself, docker.io/library/python, library/python:3.11, ..., python
    """
    whole = image.strip().split("@", 1)[0]
    registry, _, rest = whole.partition("/")
    # As container engines tell a registry from a user: it has a dot or a port.
    bare = rest if rest and ("." in registry or ":" in registry or registry == "localhost") else whole
    short = bare.removeprefix("library/")
    names = (spelling for name in (whole, bare, short) for spelling in (name, _untagged(name)))
    return tuple(dict.fromkeys(names))


def _untagged(name: str) -> str:
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _by_name(images: Images) -> dict[str, Image]:
    """Entries by every name they can be asked for: in full, and without their registry."""
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
