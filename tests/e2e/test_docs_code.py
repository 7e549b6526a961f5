"""What the documentation says about the code is so: folders, layers, files and symbols."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from support.docs.console import ROOT

SOURCE = ROOT / "src" / "aliquot"
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_CODE_BLOCK = re.compile(r"^```.*?^```$", re.M | re.S)
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|c|h|sh|toml)")
_DOTTED = re.compile(r"([a-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
_CALL = re.compile(r"([a-z_]\w*)\(.*\)(?: -> .*)?")
_TYPE = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z]\w*)+")
# Kinds and libraries that other projects define and our source does not name.
_FOREIGN_TYPES = {"DaemonSets", "StatefulSet", "GitHub", "JupyterLab"}


def is_superseded(text: str) -> bool:
    """A record that no longer holds says so on the line below its title; it may name what is gone."""
    return bool(re.search(r"\A# .+\n+\*\*Superseded", text))


def inline_code(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    return [] if is_superseded(text) else _CODE.findall(_CODE_BLOCK.sub("", text))


def file_exists(name: str) -> bool:
    """Whether a file of that path is in the repository, from its root or from any folder in it."""
    return any(path.as_posix().endswith(f"/{name}") for path in _files()) or (ROOT / name).exists()


@cache
def _files() -> tuple[Path, ...]:
    folders = ("src", "tests", "docs", "native", "tools", ".ci")
    return tuple(path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())


@cache
def _names_of(path: Path) -> frozenset[str]:
    """Everything that a module or package defines: modules in it, classes, functions, constants, methods and fields."""
    names = {child.stem for child in path.iterdir()} if path.is_dir() else set()
    files = [path / "__init__.py"] if path.is_dir() else [path]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name)
    return frozenset(names)


def resolves(dotted: str) -> bool:
    """Whether `scheduler.cache.SchedulerCache` or `aliquot.streams` names something in the package."""
    parts = dotted.removeprefix("aliquot.").split(".")
    path = SOURCE
    for index, part in enumerate(parts):
        if (path / part).is_dir():
            path = path / part
        elif (path / f"{part}.py").is_file():
            path = path / f"{part}.py"
            return all(name in _names_of(path) for name in parts[index + 1 :])
        else:
            return part in _names_of(path)
    return True


@cache
def _words() -> frozenset[str]:
    """Every word in our own source and tests."""
    files = (path for path in _files() if path.suffix in (".py", ".c", ".h", ".yaml") and path != Path(__file__))
    texts = (path.read_text(errors="replace") for path in files)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def wrong(code: str) -> str:
    """What a piece of inline code names that does not exist; empty when all of it does, or it is no code of ours."""
    if _FILE.fullmatch(code):
        return "" if file_exists(code) else f"no file {code}"
    if match := _DOTTED.fullmatch(code):
        first = match[1].removeprefix("aliquot.").split(".")[0]
        is_package = (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").is_file()
        is_data = match[1].endswith((".db", ".json", ".token", ".yaml"))  # in a data folder
        if is_data or match[1].startswith("aliquot.dev") or not (is_package or match[1].startswith("aliquot.")):
            return ""
        return "" if resolves(match[1]) else f"no symbol {match[1]}"
    if (match := _CALL.fullmatch(code)) and match[1] not in _words():
        return f"no function {match[1]}"
    if _TYPE.fullmatch(code) and code not in _words() | _FOREIGN_TYPES:
        return f"no type {code}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_files_and_symbols_exist(page: str) -> None:
    """Every file, module, function and type that a page names in its text is in the repository."""
    assert [fault for code in inline_code(page) if (fault := wrong(code))] == []


@pytest.mark.parametrize(
    "code", ["control/picture.py", "scheduler.picture", "aliquot.kube.hands", "paint_the_fence()", "PictureFrame"]
)
def test_names_that_are_gone_are_noticed(code: str) -> None:
    """The check above finds a file, a module, a function and a type that do not exist."""
    assert wrong(code)


def layers() -> list[list[str]]:
    """The layers of the import contract, top to bottom; names of one layer do not import each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [[name.strip() for name in layer.split("|")] for layer in contracts[0]["layers"]]


def rows(page: str, heading: str) -> list[list[str]]:
    """The names in the first column of the table below a heading, row by row."""
    text = (ROOT / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [_CODE.findall(cell) for cell in cells]


def test_the_layers_on_the_architecture_page_are_the_contract() -> None:
    """The table of layers has the rows of the import contract, in their order."""
    assert rows("docs/architecture.md", "Layers") == layers()


def test_the_contract_names_every_package() -> None:
    """No module or package of ours is outside of the import contract."""
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for layer in layers() for name in layer} == modules - {"__init__"}


def test_the_folders_for_contributors_are_the_tree() -> None:
    """The table of folders names exactly the packages, the folders of tests and the top-level folders that exist."""
    named = {name for row in rows("CONTRIBUTING.md", "Layout") for name in row}
    packages = {f"src/aliquot/{path.name}" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    modules = {f"src/aliquot/{path.name}" for path in SOURCE.glob("*.py") if path.name != "__init__.py"}
    tests = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name.isalpha()}
    assert {name for name in named if not (ROOT / name).exists()} == set()
    assert (packages | modules | tests) - named == set()


def test_every_folder_says_what_belongs_in_it() -> None:
    """Every package opens with a docstring."""
    packages = list(SOURCE.rglob("__init__.py"))
    silent = [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))]
    assert [path.relative_to(ROOT).as_posix() for path in silent] == []
