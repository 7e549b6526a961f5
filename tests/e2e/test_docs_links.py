"""Names in the documentation exist: links, make targets, commands and their options, pages of the site."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest
import yaml

from aliquot.cli import main
from aliquot.cli.program import global_options
from support.docs.console import ROOT

PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
PROGRAMS = {"aliquot": main.aliquot, "runai": main.runai, "runai-adm": main.runai_adm}
_CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def prose(text: str) -> str:
    return _CODE_BLOCK.sub("", text)


def commands(text: str) -> Iterator[str]:
    """What a reader may type: inline code, lines of `sh` blocks, commands of `console` blocks."""
    yield from _CODE.findall(prose(text))
    for language, code in _CODE_BLOCK.findall(text):
        for line in code.splitlines():
            if language == "console" and line.startswith("$ "):
                yield line[2:]
            elif language == "sh":
                yield line.split("  #")[0]


def slugs(text: str) -> set[str]:
    """Headings as generators and GitHub turn them into anchors."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def problem(words: list[str]) -> str:
    """What is wrong with a command line of ours; empty when nothing is."""
    command: click.Command = PROGRAMS[words[0]]
    context = click.Context(command, info_name=words[0])
    rest = words[1:]
    # Upper case stands for something the reader puts in.
    while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]) and rest[0][0] != "-":
        subcommand = command.get_command(context, rest[0])
        if subcommand is None:
            return f"{command.name} has no command {rest[0]}"
        command, rest = subcommand, rest[1:]
    # What stands after a bare "--", or after the name of the job for `exec`, is the user's own command.
    rest = rest[: rest.index("--")] if "--" in rest else rest
    rest = rest[:1] if command.name == "exec" else rest
    params = [*command.params, *global_options(hidden=True)]
    known = {"--help", "-h", *(name for param in params for name in (*param.opts, *param.secondary_opts))}
    odd = [word for word in rest if word.startswith("-") and word != "-" and word.split("=")[0] not in known]
    return f"{' '.join(words)}: no option {', '.join(odd)}" if odd else ""


def ours(line: str) -> list[str]:
    """The words of a call of one of our programs, up to the next pipe or bracket; none when it is something else."""
    line = re.sub(r"^\(umask 077; ", "", line)
    if line.split(" ")[0] not in PROGRAMS:
        return []
    words = shlex.shlex(line, posix=True, punctuation_chars="|>;)&")
    words.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set("|>;)&"), words))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link names a file that exists, and a heading in it."""
    path = ROOT / page
    broken = []
    for link in _LINK.findall(prose(path.read_text())):
        name, _, anchor = link.partition("#")
        if re.match(r"\w+:", name):
            continue
        target = (path.parent / name) if name else path
        if not target.is_file() or (anchor and anchor not in slugs(target.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_links_stay_inside_the_site(page: str) -> None:
    """A page of the site links to nothing that the site does not have."""
    links = [link.partition("#")[0] for link in _LINK.findall(prose((ROOT / page).read_text()))]
    targets = [((ROOT / page).parent / link).resolve() for link in links if link and not re.match(r"\w+:", link)]
    assert [target for target in targets if not target.is_relative_to(ROOT / "docs")] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    """Every `make` target that a page names is one."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {target for line in commands((ROOT / page).read_text()) for target in re.findall(r"^make ([a-z-]+)", line)}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    """Every command of ours that a page names exists, with its options."""
    calls = [words for line in commands((ROOT / page).read_text()) if (words := ours(line))]
    assert [fault for words in calls if (fault := problem(words))] == []


@pytest.mark.parametrize("words", ["aliquot dance", "aliquot project paint", "runai get --colour", "runai-adm up"])
def test_wrong_commands_are_noticed(words: str) -> None:
    """The check above finds a word or an option that we do not have."""
    assert problem(words.split())


def test_every_command_is_explained() -> None:
    """The page about the command line names every command that help shows."""
    text = (ROOT / "docs/cli.md").read_text()
    shown = [name for name, entry in main.COMMANDS.items() if not entry.hidden]
    assert [name for name in shown if f"`aliquot {name}" not in text] == []


def test_every_target_is_explained() -> None:
    """The page for contributors names every make target that `make help` shows."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    assert [target for target in targets if target != "help" and f"`make {target}`" not in text] == []


def test_every_folder_is_explained() -> None:
    """The page for contributors has a line for every package of ours and every folder of tests."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = [path.parent for path in (ROOT / "src/aliquot").glob("*/__init__.py")]
    folders += [path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name.isalpha()]
    names = [path.relative_to(ROOT).as_posix() for path in folders]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_make_up_serves() -> None:
    """`make up` is `aliquot up` from the environment that make has set up."""
    command = ["make", "--no-print-directory", "-n", "up"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines()[-1].split() == ["exec", ".venv/bin/aliquot", "up"]


def test_site_has_every_page() -> None:
    """The navigation of the site leads to every page, and to none that is not there."""

    def leaves(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)):
            for each in value.values() if isinstance(value, dict) else value:
                yield from leaves(each)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [Path(page).relative_to("docs").as_posix() for page in PAGES if page.startswith("docs/")]
    assert sorted(leaves(nav)) == sorted(pages)
