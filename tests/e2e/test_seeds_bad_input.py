"""Wrong input: each time one line says what is wrong, the exit status is not 0, and nothing is created."""

from __future__ import annotations

import json

import pytest

from support.seeds.platform import CommandResult, Platform
from support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("demo")


def check_refused(result: CommandResult, error: str, hint: str = "") -> None:
    """The command failed with this error and hint, and printed nothing else."""
    expected = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert result == CommandResult(1, "", expected)


def test_unknown_project(demo: Platform) -> None:
    """A submission to a project that does not exist is refused; the error names the project."""
    done = demo.sh("runai submit lost -p nope -i python -g 1")
    check_refused(done, "project 'nope' does not exist", "`runai list projects` shows those there are")


def test_unknown_project_set(demo: Platform) -> None:
    """A project that does not exist cannot become the default; the old default stays."""
    before = demo.sh("runai list").out.splitlines()[0]
    done = demo.sh("runai project set nope")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: project 'nope' ")
    assert demo.sh("runai list").out.splitlines()[0] == before


def test_unknown_project_set_then_submit(demo: Platform) -> None:
    """Two commands on one line: when the project cannot be set, nothing is submitted."""
    done = demo.sh("runai project set nope runai submit astray -i python")
    assert (done.status, done.out) == (1, "")
    assert demo.job("astray", "team-a") is None


def test_no_project(demo: Platform) -> None:
    """Without a default project the error says how to set one."""
    done = demo.sh("runai submit lost -i python", HOME=str(demo.home / "nobody"))
    check_refused(done, "no project is set: run `runai config project NAME`, or give -p NAME")


def test_duplicate(demo: Platform) -> None:
    """A duplicate name is refused, and the existing job keeps running."""
    demo.submit("twice", "team-b", "-i python --command sleep --args infinity")
    before = demo.job_instances()["twice"]
    done = demo.sh("runai submit twice -p team-b -i ubuntu")
    check_refused(
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
    """The error of an invalid value names its flag, and no job is created."""
    check_refused(demo.sh(f"runai submit wrong -p team-b {flags}"), error)
    assert demo.job("wrong", "team-b") is None


def test_more_gpus_than_a_node_has(demo: Platform) -> None:
    """A job that fits on no node is accepted and pending, and its description says why."""
    demo.submit("huge", "team-d", "-i python -g 9 --command sleep --args infinity", "Pending")
    reason = "no node has 9 GPUs"
    wait_until(lambda: reason in demo.sh("runai get huge -p team-d").out, "the reason")
    lines = demo.sh("runai describe job huge -p team-d").out.splitlines()
    assert "STATUS: Pending" in lines
    assert reason in lines[lines.index("Why it waits:") + 1]


def test_log_of_a_job_that_never_started(demo: Platform) -> None:
    """A pending job has no log, and the error says why it is pending."""
    demo.submit("too-large", "team-d", "-i python -g 9 --command sleep --args infinity", "Pending")
    wait_until(lambda: "no node has 9 GPUs" in json.dumps(demo.job("too-large", "team-d")), "the reason")
    done = demo.sh("runai logs too-large -p team-d")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: job 'too-large' has no log: it is Pending: no node has 9 GPUs")


def test_command_that_does_not_exist(demo: Platform) -> None:
    """A job whose command does not exist fails, and its message names the command."""
    demo.submit("typo", "team-b", "-i python --command slep --args infinity", "Failed", "ContainerCannotRun")
    row = demo.sh("runai list -p team-b | grep ^typo").out
    assert row.split()[:2] == ["typo", "ContainerCannotRun"]
    assert "MESSAGE: command not found: slep" in demo.sh("runai get typo -p team-b").out.splitlines()


def test_exec_that_does_not_exist(demo: Platform) -> None:
    """`runai exec` of a command that does not exist fails with the name of the command."""
    demo.submit("host", "team-b", "-i python --command sleep --args infinity")
    check_refused(demo.sh("runai exec host -p team-b slep"), "command not found: slep")


def test_bash_into_a_finished_job(demo: Platform) -> None:
    """`runai bash` into a job that has ended is refused."""
    demo.submit("brief", "team-b", "-i busybox --command true", "Succeeded", "Completed")
    check_refused(demo.sh("runai bash brief -p team-b"), "nothing runs in job 'brief': it is Succeeded")


def test_image_that_is_not_in_the_catalogue(demo: Platform) -> None:
    """A job with an image that is not in the catalogue fails, and the message lists the alternatives."""
    demo.submit("strange", "team-b", "-i acme/trainer", "Failed")
    message = next(
        line for line in demo.sh("runai get strange -p team-b").out.splitlines() if line.startswith("MESSAGE: ")
    )
    assert "image 'acme/trainer' is not in the catalogue" in message
    for alternative in ("--command", "images.yaml", "containers or Kubernetes"):
        assert alternative in message


def test_unknown_image_with_a_command(demo: Platform) -> None:
    """With --command any image works."""
    demo.submit("own", "team-b", "-i acme/trainer --command echo --args hello", "Succeeded", "Completed")
    assert demo.sh("runai logs own -p team-b") == CommandResult(0, "hello\n", "")


@pytest.mark.parametrize("command", ["get ghost", "logs ghost", "bash ghost", "delete ghost", "describe job ghost"])
def test_unknown_job(demo: Platform, command: str) -> None:
    """The error of a job that does not exist names the job and the project."""
    done = demo.sh(f"runai {command} -p team-c")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: job 'ghost' does not exist in project 'team-c'\n")
