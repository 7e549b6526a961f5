"""`aliquot kubeconfig` without Kubernetes: arguments that are refused before the first request."""

from __future__ import annotations

import pytest

from support.cli.environment import CliEnvironment

ARGUMENTS = ("kubeconfig", "-p", "vision", "--user", "ann")


@pytest.mark.parametrize(
    "arguments,error",
    [
        (("--duration", "soon"), "error: --duration: must be a duration such as 30s, 5m, 2h or 1d, not 'soon'\n"),
        (("--server", "k8s"), "error: --server: 'k8s' is no address\n"),
        (("-o", "/"), "error: -o: / is a folder\n"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(cli: CliEnvironment, arguments: tuple[str, ...], error: str) -> None:
    """The error names the wrong option."""
    result = cli.invoke(*ARGUMENTS, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(error)


def test_an_existing_file_is_kept(cli: CliEnvironment) -> None:
    """An existing file is not overwritten, and no token is requested."""
    file = cli.home / "config"
    file.write_text("old")
    result = cli.invoke(*ARGUMENTS, "-o", str(file))
    assert (result.exit_code, file.read_text()) == (1, "old")
    assert "is there already" in result.stderr


def test_a_dangling_link_is_not_followed(cli: CliEnvironment) -> None:
    """A symbolic link must not redirect the file with the token."""
    file = cli.home / "config"
    file.symlink_to(cli.home / "elsewhere")
    assert "is there already" in cli.invoke(*ARGUMENTS, "-o", str(file)).stderr


def test_runai_adm_has_the_command_too(cli: CliEnvironment) -> None:
    """`runai-adm kubeconfig` is the same command."""
    assert cli.invoke_adm("kubeconfig", "--help").exit_code == 0
