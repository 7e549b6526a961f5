"""`runai bash` in a real terminal."""

from __future__ import annotations

import getpass
import os

import pytest

from support.seeds.platform import Platform
from support.seeds.tmux import PROMPT, Screen

pytestmark = pytest.mark.xdist_group("demo")

# Only a platform that runs as root gives jobs a root user of their own.
INSIDE = "root@frac03-3-0-0:/workload#" if os.geteuid() == 0 else f"{getpass.getuser()}@frac03-3-0-0:/workload$"


@pytest.fixture
def shell(demo: Platform, screen: Screen) -> Screen:
    """A terminal in which `runai bash frac03-3` has just been typed."""
    if demo.job("frac03-3", "user-agm") is None:
        demo.submit("frac03-3", "user-agm", "-i gcr.io/run-ai-demo/quickstart -g 0.3")
    screen.type("runai bash frac03-3 -p user-agm; echo status=$?")
    screen.shows(INSIDE)
    return screen


def test_prompt(shell: Screen) -> None:
    """The prompt shows user, pod and folder."""
    assert shell.text.rstrip().splitlines()[-1] == INSIDE


def test_output(shell: Screen) -> None:
    """Commands run inside of the job, and their output appears."""
    shell.type("echo $JOB_NAME has $RUNAI_NUM_OF_GPUS")
    shell.shows("frac03-3 has 0.3")


def test_size(shell: Screen) -> None:
    """The job's terminal is as large as the window."""
    shell.type("stty size")
    shell.shows("40 120")


def test_resize(shell: Screen) -> None:
    """The job's terminal follows when the window changes its size."""
    shell.resize(100, 30)
    # The new size is sent separately from the input, so the first `stty` may still print the old one.
    shell.type("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; stty size")
    shell.shows("30 100")


def test_interrupt(shell: Screen) -> None:
    """Ctrl-C ends the command in the job, and neither the shell nor the connection."""
    shell.type("echo up-$((1 + 1)); sleep 1000")
    shell.shows("up-2")
    shell.press("C-c")
    shell.type("echo ended with $?")
    shell.shows("ended with 130")


def test_exit_status(shell: Screen) -> None:
    """The exit status is that of the shell, and the mode of the terminal is restored."""
    shell.type("exit 3")
    shell.shows("status=3")
    shell.type("stty -a | grep -ow -e -echo -e -icanon -e -isig || echo all on")
    shell.shows("all on")


def test_end_of_input(shell: Screen) -> None:
    """Ctrl-D ends the shell."""
    shell.press("C-d")
    shell.shows("status=0")
    shell.matches(f"^{PROMPT.rstrip()}$")
