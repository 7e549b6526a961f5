"""Pages about the scheduler show what it does: each of their scenarios is played, and prints what the page prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aliquot.sim import scenario
from support.docs.console import ROOT, read
from support.docs.scenarios import printed

PAGES = ["docs/replay.md", "docs/scheduler.md", "docs/simulate.md"]


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_what_happens(name: str, tmp_path: Path) -> None:
    """Whoever types what the page says sees what the page shows."""
    page = read(ROOT / name)
    steps = [step for block in page.blocks for step in block]
    found = printed(page, tmp_path)
    assert steps
    assert {step.command: found[step.line] for step in steps} == {step.command: step.output for step in steps}


def test_every_example_is_played() -> None:
    """No file of a page is there without a command that reads it."""
    for name in PAGES:
        page = read(ROOT / name)
        commands = " ".join(step.command for block in page.blocks for step in block)
        assert [file for file in page.files if f" {file}" not in commands] == []


@pytest.mark.parametrize(
    "table", ["SCENARIO", "POLICY", "NODE", "CARD", "PROJECT", "REQUEST", "WORKLOAD", "GROUP", "TASK", "STEP"]
)
def test_every_field_is_explained(table: str) -> None:
    """The page about scenarios names every field that may stand in one."""
    text = (ROOT / "docs/simulate.md").read_text()
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    assert set(getattr(scenario, f"_{table}")) - known == set()
