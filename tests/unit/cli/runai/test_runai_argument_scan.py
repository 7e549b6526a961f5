"""The classic argument syntax: the scanner alone, and the whole program."""

from __future__ import annotations

import pytest

from aliquot.cli.runai.argument_scan import ENTRYPOINT_FOLLOWS, scan, split_commands
from support.cli.environment import CliEnvironment

FLAGS = {
    "--gpu": True, "-g": True, "--args": True, "--command": True, "-c": True, "--project": True, "-p": True,
    "--interactive": False, "--stdin": False, "-i": False, "-t": False, "--large-shm": False, "--preemptible": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "line, arguments",
    [
        ("--args --num_mounts=2", ["--args", "--num_mounts=2"]),
        ("--args=--num_mounts=2", ["--args=--num_mounts=2"]),
        ("--args -- x", ["--args", "--", "x"]),
        ("-g -1", ["-g", "-1"]),
        ("-g1", ["-g", "1"]),
        ("-g=1", ["-g", "1"]),
        ("a -g 1 b --interactive c", ["a", "-g", "1", "b", "--interactive", "c"]),
        ("-itp team-a", ["-i", "-t", "-p", "team-a"]),
        ("--gpu", ["--gpu"]),
        ("--unknown x", ["--unknown", "x"]),
    ],
)
def test_a_flag_with_a_value_takes_the_next_argument(line: str, arguments: list[str]) -> None:
    """It takes any argument, and flags and names may be mixed."""
    assert scan(line.split(), FLAGS).arguments == arguments


@pytest.mark.parametrize(
    "line, arguments, trailing",
    [
        ("--command=sleep --args 1", ["--command=sleep", "--args", "1"], None),
        ("--command sleep", ["--command=sleep"], None),
        ("--command=-x", ["--command=-x"], None),
        ("--command -- python x.py", [ENTRYPOINT_FOLLOWS], ["python", "x.py"]),
        ("--command --interactive", [ENTRYPOINT_FOLLOWS, "--interactive"], None),
        ("--command", [ENTRYPOINT_FOLLOWS], None),
        ("-c -- ls -l", [ENTRYPOINT_FOLLOWS], ["ls", "-l"]),
        ("job1 -- --gpu 1", ["job1"], ["--gpu", "1"]),
    ],
)
def test_command_with_and_without_a_value(line: str, arguments: list[str], trailing: list[str] | None) -> None:
    """With a value --command is the program; without one the program follows after `--`."""
    scanned = scan(line.split(), FLAGS)
    assert (scanned.arguments, scanned.trailing) == (arguments, trailing)


@pytest.mark.parametrize(
    "flag, corrected",
    [
        ("--large-shdm", "--large-shm"),
        ("–preemptible", "--preemptible"),
        ("—preemptible", "--preemptible"),
        ("–t", "-t"),
    ],
)
def test_misspelled_flags_are_corrected(flag: str, corrected: str) -> None:
    """Each correction gives a warning."""
    scanned = scan([flag], FLAGS)
    assert (scanned.arguments, scanned.warnings) == ([corrected], [f"warning: {flag}: taken as {corrected}"])


def test_a_corrected_flag_keeps_its_value() -> None:
    assert scan(["--g", "1"], FLAGS).arguments == ["-g", "1"]
    assert scan(["--g=1"], FLAGS).arguments == ["-g", "1"]
    assert scan(["--args", "–x"], FLAGS).arguments == ["--args", "–x"]


def test_switches_take_true_and_false() -> None:
    """Switches accept =true and =false, as in Go programs."""
    scanned = scan(["--interactive=false", "--stdin=true"], FLAGS)
    assert (scanned.arguments, scanned.disabled) == (["--stdin"], {"--interactive"})
    assert scan(["--interactive=maybe"], FLAGS).invalid_switch == ("--interactive", "maybe")


def test_max_positionals() -> None:
    scanned = scan(["build1", "-it", "ls", "-l", "--project", "x"], FLAGS, max_positionals=1)
    assert (scanned.arguments, scanned.trailing) == (["build1", "-i", "-t"], ["ls", "-l", "--project", "x"])


@pytest.mark.parametrize(
    "line, parts",
    [
        ("project set team-a runai submit x -g 1", ["project set team-a", "submit x -g 1"]),
        ("config project team-a runai list", ["config project team-a", "list"]),
        ("--url u -q project set a runai list", ["--url u -q project set a", "--url u -q list"]),
        ("project set team-a runai", ["project set team-a"]),
        ("project set team-a", ["project set team-a"]),
        ("submit x -- project set a runai b", ["submit x -- project set a runai b"]),
    ],
)
def test_two_commands_on_one_line(line: str, parts: list[str]) -> None:
    assert split_commands(line.split(), "runai", {"--url": True, "-q": False}) == [part.split() for part in parts]


def test_the_second_command_runs_in_the_new_project(cli: CliEnvironment) -> None:
    """The second command uses the project that the first one sets."""
    cli.create_project("team-a")
    out = cli.run_runai("project set team-a runai submit hyper1 -i gcr.io/run-ai-demo/quickstart -g 1")
    assert out.splitlines()[:2] == ["project team-a configured successfully", "Job hyper1 submitted successfully."]
    assert cli.get("workload", "hyper1", "runai-team-a")["spec"]["compute"] == {"gpu": 1}


def test_the_second_command_needs_the_first(cli: CliEnvironment) -> None:
    """When the project does not exist, the second command does not run."""
    cli.create_project("team-a")
    cli.run_runai("config project team-a")
    assert cli.invoke_runai("project set nobody runai submit x -i y").exit_code == 1
    assert cli.run_runai("list -A").count("\n") == 1


def test_delte(cli: CliEnvironment) -> None:
    cli.create_project("team-a")
    cli.run_runai("submit x -i python -p team-a")
    result = cli.invoke_runai("delte x -p team-a")
    assert (result.exit_code, result.stdout) == (0, "Job x deleted successfully.\n")
    assert result.stderr == "warning: delte: taken as delete\n"


@pytest.mark.parametrize("line", ["submit x --gpuu 1", "list --colour", "logs x --folow", "get x --jsn"])
def test_unknown_flags_are_usage_errors(cli: CliEnvironment, line: str) -> None:
    result = cli.invoke_runai(line)
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_unknown_flags_get_a_suggestion(cli: CliEnvironment) -> None:
    assert "--gpu" in cli.invoke_runai("submit x --gpuu 1").stderr
    assert "--follow" in cli.invoke_runai("logs x --folow").stderr
