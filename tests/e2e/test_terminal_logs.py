"""`runai logs -f` in a real terminal."""

from __future__ import annotations

import re

import pytest

from support.seeds.platform import Platform
from support.seeds.tmux import Screen
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture
def following(demo: Platform, screen: Screen) -> Screen:
    """A terminal in which `runai logs -f hyper1` has just been typed."""
    if demo.job("hyper1", "team-a") is None:
        demo.submit("hyper1", "team-a", "-i gcr.io/run-ai-demo/quickstart -g 1")
    screen.type("clear; runai logs -f hyper1; echo status=$?")
    return screen


def test_follows(following: Screen) -> None:
    """New lines of the log appear."""

    def lines() -> list[str]:
        return re.findall(r"^.* - loss: .*$", following.text, re.MULTILINE)

    wait_until(lambda: len(lines()) > 0, "a first line")
    last = lines()[-1]
    wait_until(lambda: lines()[-1] != last, "a next line")


def test_interrupt(demo: Platform, following: Screen) -> None:
    """Ctrl-C ends the command with status 130; the job keeps running."""
    following.matches("- loss: ")
    following.press("C-c")
    following.matches("^(\\^C)?status=130$")
    assert "Traceback" not in following.text
    assert demo.phase("hyper1", "team-a") == "Running"


def test_survives_a_kill(demo: Platform, following: Screen) -> None:
    """After a restart of a killed platform the log continues, without lost or repeated lines."""
    following.matches("- loss: ")
    demo.kill()
    # The note about the connection may take two lines of the screen.
    wait_until(
        lambda: re.search(r"(?s)connection lost.* - loss: ", following.text) is not None, "a line after the kill"
    )
    shown = re.findall(r"^(?:Epoch| *\d+/\d+ \[).*$", following.text, re.MULTILINE)
    assert "\n".join(shown) in demo.sh("runai logs hyper1").out
