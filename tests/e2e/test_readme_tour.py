"""The commands of README, quickstart and the REST API page run, and print what the pages show."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.docs.console import ROOT, Tour, read


def needs_curl() -> None:
    if os.environ.get("CI") != "true" and shutil.which("curl") is None:
        pytest.skip("install curl to try the calls of this page")


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/rest-api.md"])
def test_page_shows_what_happens(name: str, tmp_path: Path) -> None:
    """The commands of the page print what the page shows."""
    page = read(ROOT / name)
    if any("curl" in step.command for block in page.blocks for step in block):
        needs_curl()
    tour = Tour(page, tmp_path)
    assert tour.run() == tour.expected()
