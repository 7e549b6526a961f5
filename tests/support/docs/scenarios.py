"""Pages about the scheduler that are true: every `aliquot simulate` in them is run and compared with what they show.

The blocks are those of console.py, without a server: yaml blocks that begin with `# name.yaml` are files, and a command
is `aliquot simulate`, perhaps with a pipe behind it. After a change of what the program says,

    PYTHONPATH=tests python -m support.docs.scenarios docs/scheduler.md

writes what it says now into the page. Read the difference: each one is a changed decision or a changed sentence.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from aliquot.cli.main import aliquot
from support.docs.console import Page, read


def printed(page: Page, folder: Path) -> dict[int, list[str]]:
    """What each command of a page prints, by its line."""
    for name, text in page.files.items():
        (folder / name).write_text(text)
    with chdir(folder):
        return {step.line: _print(step.command) for block in page.blocks for step in block}


def _print(command: str) -> list[str]:
    call, _, pipe = command.partition(" | ")
    program, *words = shlex.split(call)
    assert program == "aliquot", command
    result = CliRunner().invoke(aliquot, words)
    text = result.output
    if pipe:
        told = subprocess.run(["sh", "-c", pipe], input=text, capture_output=True, text=True, check=True)
        text = told.stdout
    return [line.rstrip() for line in text.splitlines()]


def _rewrite(path: Path) -> None:
    with TemporaryDirectory() as folder:
        found = printed(read(path), Path(folder))
    lines: list[str] = []
    console = told = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            console, told = line == "```console", False
        if number in found:
            lines += [line, *found[number]]
            told = True
        elif not (console and told):
            lines.append(line)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    for name in sys.argv[1:]:
        _rewrite(Path(name))
