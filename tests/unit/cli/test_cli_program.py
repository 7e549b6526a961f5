"""The programs as a whole: start-up cost, help, errors, exit status, `up`, `down` and completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aliquot.cli.context import CommandContext
from aliquot.cli.main import ADMIN_COMMANDS, COMMANDS, RUNAI_COMMANDS, aliquot, runai, runai_adm
from aliquot.cli.program import CommandSpec, Program
from aliquot.cli.server import check_host
from aliquot.client.connection import ServerOptions
from aliquot.errors import Conflict, Denied
from aliquot.folder import start_time
from support.cli.environment import CliEnvironment

HEAVY = ("pydantic", "aiohttp", "yaml", "fastapi", "asyncio", "aliquot.api", "aliquot.store")


def python(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


def test_help_loads_nothing_heavy() -> None:
    """`--help` imports click and nothing heavy."""
    result = python("-X", "importtime", "-m", "aliquot.cli.main", "--help")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert "click" in loaded
    assert not [name for name in loaded if name.startswith(HEAVY)]


@pytest.mark.parametrize("table", [COMMANDS, RUNAI_COMMANDS, ADMIN_COMMANDS])
def test_every_command_of_the_table_loads(table: dict[str, CommandSpec]) -> None:
    """Each entry of the command tables can be imported."""
    context = click.Context(aliquot)
    for name in table:
        command = Program("x", table).get_command(context, name)
        assert isinstance(command, click.Command), name


@pytest.mark.parametrize("program", [aliquot, runai, runai_adm])
def test_every_help_page_prints(program: Program) -> None:
    """`--help` of each command works."""

    def walk(path: list[str], command: click.Command) -> None:
        result = CliRunner().invoke(program, [*path, "--help"])
        assert result.exit_code == 0, path
        assert "Usage: " in result.stdout
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk([*path, name], inner)

    walk([], program)


def test_a_typo_gets_a_suggestion() -> None:
    result = CliRunner().invoke(runai, ["submti", "x"])
    assert result.exit_code == 2
    assert "'submit'" in result.stderr


def test_version() -> None:
    from aliquot import __version__

    assert CliRunner().invoke(runai_adm, ["version"]).stdout == f"aliquot {__version__}\n"
    assert "python" in CliRunner().invoke(aliquot, ["version", "--wide"]).stdout


def _failing(error: BaseException) -> Program:
    @click.command()
    def go() -> None:
        raise error

    class Failing(Program):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return go

    return Failing("x", {})


@pytest.mark.parametrize(
    "error, status, message",
    [
        (Conflict("somebody was faster"), 1, "error: somebody was faster\n"),
        (RuntimeError("odd"), 1, "error: unexpected RuntimeError: odd\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.UsageError("what?"), 2, "error: what?\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ],
)
def test_errors_become_a_line_and_a_status(error: BaseException, status: int, message: str) -> None:
    """An error gives one line without a traceback, and the right exit status."""
    result = CliRunner().invoke(_failing(error), ["go"])
    assert result.exit_code == status
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback() -> None:
    result = CliRunner().invoke(_failing(RuntimeError("odd")), ["--debug", "go"])
    assert "Traceback" in result.stderr


def test_a_closed_pipe_prints_no_error() -> None:
    """`aliquot ... | head` prints no error."""
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "aliquot.cli.main", "--help"]
    result = subprocess.run(program, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert result.stderr == ""


def test_no_server_is_one_line(tmp_path: Path) -> None:
    """Without a server the error is one line and a hint; global options may stand before or after the command."""
    for arguments in (["--data-dir", str(tmp_path), "status"], ["status", "--data-dir", str(tmp_path)]):
        result = CliRunner().invoke(aliquot, arguments)
        assert result.exit_code == 1
        assert result.stderr.splitlines() == [
            f"error: no server is running for {tmp_path}",
            "hint: start one with `aliquot up`, or name one with --url or ALIQUOT_URL",
        ]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_up_listens_on_this_machine(host: str) -> None:
    check_host(host, consent=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_up_needs_consent_for_other_addresses(host: str) -> None:
    """An address that other machines can reach needs consent, because there is no TLS."""
    with pytest.raises(Denied, match="TLS"):
        check_host(host, consent=False)
    check_host(host, consent=True)


def test_up_refuses_wrong_options() -> None:
    assert CliRunner().invoke(aliquot, ["up", "--context", "x"]).exit_code == 2
    assert CliRunner().invoke(aliquot, ["up", "--port", "99999"]).exit_code == 2


def _down(folder: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(aliquot, ["down", *arguments], obj=CommandContext(ServerOptions(data_dir=str(folder))))
    return result.exit_code, result.stdout, result.stderr


def test_down_without_a_server(tmp_path: Path) -> None:
    """`down` without a server is no error."""
    assert _down(tmp_path) == (0, f"no server is running for {tmp_path}\n", "")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of the server, with its server.json in the data folder."""
    process = subprocess.Popen(["sleep", "60"])
    server_facts = {"url": "http://127.0.0.1:1", "pid": process.pid, "startTime": start_time(process.pid)}
    (tmp_path / "server.json").write_text(json.dumps(server_facts))
    yield process
    process.kill()
    process.wait(5)


def test_down_stops_the_server(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """`down` sends SIGTERM to the server and prints its process id."""
    status, out, _ = _down(tmp_path)
    assert (status, out) == (0, f"server stopped (pid {sleeper.pid}, http://127.0.0.1:1)\n")
    assert sleeper.wait(5) == -signal.SIGTERM


def test_down_does_not_stop_another_process(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """A process that reuses the process id of the server is not stopped."""
    server_facts = json.loads((tmp_path / "server.json").read_text())
    (tmp_path / "server.json").write_text(json.dumps({**server_facts, "startTime": "1"}))
    status, out, _ = _down(tmp_path)
    assert (status, out) == (0, f"no server is running for {tmp_path}\n")
    assert sleeper.poll() is None


def _completed(cli: CliEnvironment, line: str) -> list[str]:
    arguments = line.split(" ")
    env = {"_ALIQUOT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(arguments) - 1)}
    result = CliRunner().invoke(aliquot, [], obj=cli.context(), env=env)
    return [item.partition(",")[2] for item in result.stdout.splitlines()]


def test_completion(cli: CliEnvironment) -> None:
    """The shell completes commands, kinds and names of objects."""
    cli.create("project", "team-a")
    cli.create("project", "team-b")
    assert _completed(cli, "aliquot proj") == ["project"]
    assert _completed(cli, "aliquot get proj") == ["projects"]
    assert _completed(cli, "aliquot get projects,node") == ["projects,nodepools", "projects,nodes"]
    assert _completed(cli, "aliquot get project team") == ["team-a", "team-b"]
    assert _completed(cli, "aliquot delete project team-a team") == ["team-b"]
    assert _completed(cli, "aliquot project set team") == ["team-a", "team-b"]
    assert "list" not in _completed(cli, "aliquot l")


def test_completion_without_a_server_is_silent(tmp_path: Path) -> None:
    line = "aliquot get projects "
    env = {"_ALIQUOT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "3"}
    env |= {"ALIQUOT_DATA_DIR": str(tmp_path), "RUNAI_CLI_CONFIG_PATH": str(tmp_path)}
    result = CliRunner().invoke(aliquot, [], env=env)
    assert (result.stdout.strip(), result.stderr) == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_scripts(shell: str) -> None:
    """There is a script for each shell, with the name of the program."""
    result = CliRunner().invoke(runai_adm, ["completion", shell])
    assert result.exit_code == 0
    assert "_RUNAI_ADM_COMPLETE" in result.stdout
    assert result.stdout.startswith("# ")
