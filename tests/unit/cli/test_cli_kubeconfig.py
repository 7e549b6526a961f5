"""`aliquot kubeconfig`, as far as it gets without Kubernetes: what is refused before anything is asked."""

from __future__ import annotations

import pytest

from support.cli.world import World

WORDS = ("kubeconfig", "-p", "vision", "--user", "ann")


@pytest.mark.parametrize(
    "words,said",
    [
        (("--duration", "soon"), "error: --duration: must be a duration such as 30s, 5m, 2h or 1d, not 'soon'\n"),
        (("--server", "k8s"), "error: --server: 'k8s' is no address\n"),
        (("-o", "/"), "error: -o: / is a folder\n"),
    ],
)
def test_bad_words_are_refused_in_one_line(world: World, words: tuple[str, ...], said: str) -> None:
    """Each with the option that is wrong."""
    result = world(*WORDS, *words)
    assert result.exit_code == 1
    assert result.stderr.startswith(said)


def test_a_file_that_is_there_stays(world: World) -> None:
    """No token is asked for when there is no place to put it."""
    file = world.home / "config"
    file.write_text("mine")
    result = world(*WORDS, "-o", str(file))
    assert (result.exit_code, file.read_text()) == (1, "mine")
    assert "is there already" in result.stderr


def test_a_link_that_leads_nowhere_is_not_followed(world: World) -> None:
    """Whoever can put a link there must not choose where a token goes."""
    file = world.home / "config"
    file.symlink_to(world.home / "elsewhere")
    assert "is there already" in world(*WORDS, "-o", str(file)).stderr


def test_administrators_have_the_word_too(world: World) -> None:
    """`runai-adm kubeconfig` is the same command."""
    assert world.adm("kubeconfig", "--help").exit_code == 0
