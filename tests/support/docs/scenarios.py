"""Runs every `aliquot simulate` and `aliquot replay` of the documentation and compares the output with the page.

The blocks are those of console.py, without a server: yaml blocks that begin with `# name.yaml` are files, and a command
is one of these two, optionally with a pipe. After a change of the output,

    PYTHONPATH=tests python -m support.docs.scenarios docs/scheduler.md

writes the new output into the page. Read the diff: each difference is a changed decision or a changed sentence.
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
    """The output of each command of a page, by line number."""
    for name, text in page.files.items():
        (folder / name).write_text(text)
    with chdir(folder):
        return {step.line: _print(step.command) for block in page.blocks for step in block}


def _print(command: str) -> list[str]:
    call, _, pipe = command.partition(" | ")
    program, *arguments = shlex.split(call)
    assert program == "aliquot", command
    result = CliRunner().invoke(aliquot, arguments)
    text = result.output
    if pipe:
        filtered = subprocess.run(["sh", "-c", pipe], input=text, capture_output=True, text=True, check=True)
        text = filtered.stdout
    return [line.rstrip() for line in text.splitlines()]


def _rewrite(path: Path) -> None:
    with TemporaryDirectory() as folder:
        outputs = printed(read(path), Path(folder))
    lines: list[str] = []
    console = replaced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            console, replaced = line == "```console", False
        if number in outputs:
            lines += [line, *outputs[number]]
            replaced = True
        elif not (console and replaced):
            lines.append(line)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    for name in sys.argv[1:]:
        _rewrite(Path(name))
