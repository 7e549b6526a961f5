"""What a person may get wrong: each time one line says what and why, the status is not 0, and nothing is created."""

from __future__ import annotations

import json

import pytest

from support.seeds.platform import CommandResult, Platform
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("demo")


def refused(done: CommandResult, error: str, hint: str = "") -> None:
    """It failed with this error (and hint) and printed nothing else."""
    wanted = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert done == CommandResult(1, "", wanted)


def test_unknown_project(demo: Platform) -> None:
    """A job in a project that does not exist is refused by the project's name."""
    done = demo.sh("runai submit lost -p nope -i python -g 1")
    refused(done, "project 'nope' does not exist", "`runai list projects` shows those there are")


def test_unknown_project_set(demo: Platform) -> None:
    """A project that does not exist cannot become the default one, and the old one stays."""
    before = demo.sh("runai list").out.splitlines()[0]
    done = demo.sh("runai project set nope")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: project 'nope' ")
    assert demo.sh("runai list").out.splitlines()[0] == before


def test_unknown_project_set_then_submit(demo: Platform) -> None:
    """On one line: when the project cannot be set, nothing is submitted."""
    done = demo.sh("runai project set nope runai submit astray -i python")
    assert (done.status, done.out) == (1, "")
    assert demo.job("astray", "team-a") is None


def test_no_project(demo: Platform) -> None:
    """Without a default project the command says how to set one."""
    done = demo.sh("runai submit lost -i python", HOME=str(demo.home / "nobody"))
    refused(done, "no project is set: run `runai config project NAME`, or give -p NAME")


def test_duplicate(demo: Platform) -> None:
    """A name that is taken is refused, and the job that has it runs on."""
    demo.submit("twice", "team-b", "-i python --command sleep --args infinity")
    before = demo.job_instances()["twice"]
    done = demo.sh("runai submit twice -p team-b -i ubuntu")
    refused(
        done,
        "job 'twice' already exists in project 'team-b'",
        "choose another name, or delete it first: runai delete twice -p team-b",
    )
    assert demo.job_instances()["twice"] == before


@pytest.mark.parametrize(
    "flags, error",
    [
        ("-g 1", "--image: is required: give one, or a template that has one"),
        ("-i python -g 1.5", "--gpu: must be a whole number of GPUs, or a fraction of one below 1, not 1.5"),
        ("-i python -g -1", "--gpu: must not be negative, not '-1'"),
        ("-i python -g 0.1234", "--gpu: must have at most three decimals, not '0.1234'"),
    ],
    ids=["no-image", "one-and-a-half", "negative", "too-fine"],
)
def test_bad_flag(demo: Platform, flags: str, error: str) -> None:
    """A value that cannot be is refused by its flag, and no job is created."""
    refused(demo.sh(f"runai submit wrong -p team-b {flags}"), error)
    assert demo.job("wrong", "team-b") is None


def test_more_gpus_than_a_node_has(demo: Platform) -> None:
    """A job that fits on no node is taken, waits, and says why it waits."""
    demo.submit("huge", "team-d", "-i python -g 9 --command sleep --args infinity", "Pending")
    why = "no node has 9 GPUs"
    wait_until(lambda: why in demo.sh("runai get huge -p team-d").out, "the reason")
    lines = demo.sh("runai describe job huge -p team-d").out.splitlines()
    assert "STATUS: Pending" in lines
    assert why in lines[lines.index("Why it waits:") + 1]


def test_log_of_a_job_that_never_started(demo: Platform) -> None:
    """A job that waits has no log, and the error says what it waits for."""
    demo.submit("unborn", "team-d", "-i python -g 9 --command sleep --args infinity", "Pending")
    wait_until(lambda: "no node has 9 GPUs" in json.dumps(demo.job("unborn", "team-d")), "the reason")
    done = demo.sh("runai logs unborn -p team-d")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: job 'unborn' has no log: it is Pending: no node has 9 GPUs")


def test_command_that_does_not_exist(demo: Platform) -> None:
    """A job whose command is not there cannot run, and says which command that is."""
    demo.submit("typo", "team-b", "-i python --command slep --args infinity", "Failed", "ContainerCannotRun")
    row = demo.sh("runai list -p team-b | grep ^typo").out
    assert row.split()[:2] == ["typo", "ContainerCannotRun"]
    assert "MESSAGE: command not found: slep" in demo.sh("runai get typo -p team-b").out.splitlines()


def test_exec_that_does_not_exist(demo: Platform) -> None:
    """A command that is not there cannot be run inside a job either."""
    demo.submit("host", "team-b", "-i python --command sleep --args infinity")
    refused(demo.sh("runai exec host -p team-b slep"), "command not found: slep")


def test_bash_into_a_finished_job(demo: Platform) -> None:
    """There is no inside of a job that has ended."""
    demo.submit("brief", "team-b", "-i busybox --command true", "Succeeded", "Completed")
    refused(demo.sh("runai bash brief -p team-b"), "nothing runs in job 'brief': it is Succeeded")


def test_image_that_is_not_in_the_catalogue(demo: Platform) -> None:
    """An image whose program nobody knows fails, and the message says what one can do."""
    demo.submit("strange", "team-b", "-i acme/trainer", "Failed")
    message = next(
        line for line in demo.sh("runai get strange -p team-b").out.splitlines() if line.startswith("MESSAGE: ")
    )
    assert "image 'acme/trainer' is not in the catalogue" in message
    for way in ("--command", "images.yaml", "containers or Kubernetes"):
        assert way in message


def test_unknown_image_with_a_command(demo: Platform) -> None:
    """With a command of one's own any image will do."""
    demo.submit("own", "team-b", "-i acme/trainer --command echo --args hello", "Succeeded", "Completed")
    assert demo.sh("runai logs own -p team-b") == CommandResult(0, "hello\n", "")


@pytest.mark.parametrize("words", ["get ghost", "logs ghost", "bash ghost", "delete ghost", "describe job ghost"])
def test_unknown_job(demo: Platform, words: str) -> None:
    """A job that does not exist is named, with its project."""
    done = demo.sh(f"runai {words} -p team-c")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: job 'ghost' does not exist in project 'team-c'\n")
