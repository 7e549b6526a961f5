"""`aliquot kubeconfig`, as far as it gets without Kubernetes: what is refused before anything is asked."""

from __future__ import annotations

import pytest

from support.cli.environment import CliEnvironment

WORDS = ("kubeconfig", "-p", "vision", "--user", "ann")


@pytest.mark.parametrize(
    "arguments,error",
    [
        (("--duration", "soon"), "error: --duration: must be a duration such as 30s, 5m, 2h or 1d, not 'soon'\n"),
        (("--server", "k8s"), "error: --server: 'k8s' is no address\n"),
        (("-o", "/"), "error: -o: / is a folder\n"),
    ],
)
def test_bad_words_are_refused_in_one_line(cli: CliEnvironment, arguments: tuple[str, ...], error: str) -> None:
    """Each with the option that is wrong."""
    result = cli.invoke(*WORDS, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(error)


def test_a_file_that_is_there_stays(cli: CliEnvironment) -> None:
    """No token is asked for when there is no place to put it."""
    file = cli.home / "config"
    file.write_text("mine")
    result = cli.invoke(*WORDS, "-o", str(file))
    assert (result.exit_code, file.read_text()) == (1, "mine")
    assert "is there already" in result.stderr


def test_a_link_that_leads_nowhere_is_not_followed(cli: CliEnvironment) -> None:
    """Whoever can put a link there must not choose where a token goes."""
    file = cli.home / "config"
    file.symlink_to(cli.home / "elsewhere")
    assert "is there already" in cli.invoke(*WORDS, "-o", str(file)).stderr


def test_administrators_have_the_word_too(cli: CliEnvironment) -> None:
    """`runai-adm kubeconfig` is the same command."""
    assert cli.invoke_adm("kubeconfig", "--help").exit_code == 0
