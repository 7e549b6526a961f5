"""Ages, times, JSONPaths, cells, tables and error messages."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from aliquot.cli import output
from aliquot.cli.describe import field_title
from aliquot.errors import Invalid


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-5, "0s"),
        (0, "0s"),
        (11, "11s"),
        (59.9, "59s"),
        (60, "1m"),
        (150, "2m"),
        (3600 * 12, "12h"),
        (86400 * 4.9, "4d"),
    ],
)
def test_age_has_one_unit(seconds: float, text: str) -> None:
    """An age has one unit and is rounded down."""
    assert output.age(seconds) == text


def test_times() -> None:
    """Past times are ages, future times have `in`, and invalid ones are a dash."""
    assert output.age_of("1970-01-01T00:00:00Z", 120) == "2m"
    assert output.age_of(None, 120) == output.age_of("soon", 120) == "-"
    assert output.age_or_countdown("1970-01-02T00:00:00Z", 0) == "in 1d"
    assert output.age_or_countdown("1970-01-01T00:00:00Z", 60) == "1m"
    assert output.local_time("2026-01-31T12:00:00Z", UTC) == "2026-01-31 12:00:00 UTC"
    assert output.local_time("soon") == "soon"


DATA = {
    "spec": {"quota": {"gpu": 0.5}, "off": False},
    "status": {
        "capacity": {"nvidia.com/gpu": "8"},
        "conditions": [{"type": "Busy", "status": "False"}, {"type": "Ready", "status": "True"}],
        "nodes": [{"name": "a"}, {"name": "b"}],
    },
}


@pytest.mark.parametrize(
    "path, value",
    [
        (".spec.quota.gpu", 0.5),
        (".spec.off", False),
        (".spec.quota.cpu", None),
        (".nothing.at.all", None),
        (".status.capacity.nvidia\\.com/gpu", "8"),
        (".status.capacity['nvidia.com/gpu']", "8"),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        ('.status.conditions[?(@.type=="Gone")].status', None),
        (".status.nodes[*].name", ["a", "b"]),
        (".status.nodes[1].name", "b"),
        (".status.nodes[7].name", None),
    ],
)
def test_column_paths(path: str, value: Any) -> None:
    """All forms of JSONPath that columns use."""
    assert output.jsonpath_value(DATA, path) == value


@pytest.mark.parametrize(
    "value, text",
    [(None, "-"), ("", "-"), ([], "-"), ({}, "-"), (0, "0"), (True, "true"), (0.5, "0.5"), (4.0, "4"),
     (["a", "b"], "a, b"), ({"k": "v"}, "k=v"), ("two\nlines", "two lines"), ("\x1b[31mred", " [31mred")],
)  # fmt: skip
def test_cells(value: Any, text: str) -> None:
    """A cell is one line without control characters."""
    assert output.cell(value) == text


def test_tables_are_aligned() -> None:
    """Columns are aligned, and the last one is not padded."""
    assert output.table(["NAME", "AGE"], [["a", "1s"], ["longer", "2m"]]) == "NAME     AGE\na        1s\nlonger   2m"
    assert output.table(["NAME"], [["a"]], headers=False) == "a"
    assert output.table(["NAME"], [], headers=False) == ""


def test_colour_does_not_move_columns() -> None:
    """Colour does not change the width of a cell."""
    plain = output.format_row(["Ready", "x"], [8, 1])
    with_colour = output.format_row(["Ready", "x"], [8, 1], colour=True)
    assert "\x1b[32m" in with_colour
    assert with_colour.replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_yaml() -> None:
    """YAML keeps the order, prints long texts as blocks, and has no anchors."""
    shared = {"x": 1}
    assert output.as_yaml({"b": shared, "a": shared, "t": "one\ntwo\n"}) == "b:\n  x: 1\na:\n  x: 1\nt: |\n  one\n  two"


def test_field_titles() -> None:
    assert field_title("overQuotaWeight") == "Over quota weight"
    assert field_title("gpu") == "GPU"
    assert field_title("aliquot.dev/project") == "aliquot.dev/project"


@pytest.mark.parametrize(
    "error, message",
    [
        (Invalid("wrong", hint="do it right"), "error: wrong\nhint: do it right\n"),
        (FileNotFoundError(2, "No such file", "x"), "error: x: No such file\n"),
        (
            ValueError("odd"),
            "error: unexpected ValueError: odd\nhint: run it again with --debug and report what it prints\n",
        ),
    ],
)
def test_errors_are_one_line(error: Exception, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output.print_error(error) == 1
    assert capsys.readouterr().err == message
