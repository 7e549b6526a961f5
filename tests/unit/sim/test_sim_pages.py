"""The scenarios in the docs about the scheduler print what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aliquot.sim import scenario_file
from support.docs.console import ROOT, read
from support.docs.scenarios import printed

PAGES = ["docs/replay.md", "docs/scheduler.md", "docs/simulate.md"]


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_happens(name: str, tmp_path: Path) -> None:
    """Each command of the page prints the output on the page."""
    page = read(ROOT / name)
    steps = [step for block in page.blocks for step in block]
    outputs = printed(page, tmp_path)
    assert steps
    assert {step.command: outputs[step.line] for step in steps} == {step.command: step.output for step in steps}


def test_every_example_file_is_used() -> None:
    """Each file on a page is read by one of its commands."""
    for name in PAGES:
        page = read(ROOT / name)
        commands = " ".join(step.command for block in page.blocks for step in block)
        assert [file for file in page.files if f" {file}" not in commands] == []


@pytest.mark.parametrize(
    "table", ["SCENARIO", "POLICY", "NODE", "GPU", "PROJECT", "REQUEST", "WORKLOAD", "SUBGROUP", "TASK", "STEP"]
)
def test_every_field_is_explained(table: str) -> None:
    """The page about scenarios names every field of the format."""
    text = (ROOT / "docs/simulate.md").read_text()
    documented = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    assert set(getattr(scenario_file, f"_{table}")) - documented == set()
