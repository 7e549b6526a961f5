"""What people and programs read: aligned tables, JSON, YAML, ages, and errors in one line.

Data goes to stdout, everything else to stderr. Colour only on a terminal and never alone: the word says it too.
Tables are plain text, because a table library costs as much start-up time as the rest of the program.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from aliquot.errors import PlatformError
from aliquot.units import timestamp

GAP = "   "
EMPTY = "-"

_COLOURS = {
    "green": ("Ready", "Running", "Succeeded", "Completed", "Active", "Bound", "True"),
    "yellow": ("Pending", "Creating", "Updating", "Initializing", "Suspended", "Unknown", "Warning"),
    "red": ("Failed", "Error", "Deleting", "Terminating", "NotReady", "Lost"),
}
_COLOUR_OF = {word: colour for colour, words in _COLOURS.items() for word in words}


def use_colour() -> bool:
    """Whether stdout takes colour: a terminal, and nobody asked for none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def age(seconds: float) -> str:
    """One unit, cut off: 11s, 2m, 12h, 4d. A clock that runs ahead gives 0s."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def age_of(moment: object, now: float) -> str:
    """The age of an RFC 3339 time; `-` when there is none."""
    try:
        return age(now - timestamp(moment)) if moment else EMPTY
    except ValueError:
        return EMPTY


def age_or_countdown(moment: object, now: float) -> str:
    """A time that may lie ahead: 5m when it is past, `in 3d` when it is to come."""
    try:
        left = timestamp(moment) - now if moment else 0
    except ValueError:
        return EMPTY
    return f"in {age(left)}" if left > 0 else age_of(moment, now)


def local_time(moment: object, zone: Any = None) -> str:
    """An RFC 3339 time in the user's zone: 2026-01-31 13:00:00 CET."""
    try:
        age_or_countdown = datetime.fromtimestamp(timestamp(moment)).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return str(moment)
    return age_or_countdown.strftime("%Y-%m-%d %H:%M:%S %Z")


# .name, .name with \. in it, ['name'], [0], [*], [?(@.type=="Ready")]
_STEP = re.compile(
    r"""\.?(?:\[\?\(@\.(?P<key>\w+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
    r"""|\[(?P<all>\*)\]|\[(?P<index>\d+)\]|\['(?P<quoted>[^']+)'\]"""
    r"""|(?P<name>(?:\\.|[^.\[\\])+))"""
)


def jsonpath_value(data: Any, path: str) -> Any:
    """What a column's JSONPath points at; None when nothing is there, a list when the path fans out."""
    found = [data]
    fans = False
    for step in _STEP.finditer(path):
        found = [value for item in found for value in _step(item, step)]
        fans = fans or step["all"] is not None
    if fans:
        return found or None
    return found[0] if found else None


def _step(item: Any, step: re.Match[str]) -> list[Any]:
    if step["key"] is not None:
        items = item if isinstance(item, list) else []
        return [each for each in items if isinstance(each, dict) and str(each.get(step["key"])) == step["value"]][:1]
    if step["all"]:
        return list(item.values()) if isinstance(item, dict) else list(item) if isinstance(item, list) else []
    if step["index"]:
        place = int(step["index"])
        return [item[place]] if isinstance(item, list) and place < len(item) else []
    name = step["quoted"] or re.sub(r"\\(.)", r"\1", step["name"])
    return [item[name]] if isinstance(item, dict) and item.get(name) is not None else []


def cell(value: Any) -> str:
    """A value in a table: short, on one line, and without control characters of others on our terminal."""
    if value is None or value == "" or value == []:
        return EMPTY
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={cell(each)}" for key, each in value.items()) or EMPTY
    return printable(str(value))


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def column_widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def format_row(row: Sequence[str], sizes: Sequence[int], *, colour: bool = False) -> str:
    """One row of a table; the last column is not padded, so that lines end where their text does."""
    padded = [text.ljust(size) for text, size in zip(row, sizes, strict=True)]
    if colour:
        padded = [_tinted(text, pad) for text, pad in zip(row, padded, strict=True)]
    return GAP.join(padded).rstrip()


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool = True) -> str:
    """An aligned table, in colour where stdout takes it."""
    shown = [titles, *rows] if headers else list(rows)
    if not shown:
        return ""
    sizes = column_widths(shown)
    colour = use_colour()
    return "\n".join(format_row(row, sizes, colour=colour) for row in shown)


def _tinted(text: str, padded: str) -> str:
    colour = _COLOUR_OF.get(text)
    return click.style(padded, fg=colour) if colour else padded


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def as_yaml(data: Any) -> str:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # the C one where it is built
        def ignore_aliases(self, data: Any) -> bool:
            return True  # anchors say nothing to people

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    out: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
    return out.rstrip("\n")


def dump(data: Any, form: str) -> str:
    return as_json(data) if form == "json" else as_yaml(data)


def print_error(error: BaseException) -> int:
    """Say an error on stderr, with what to do next; the exit status."""
    message, hint = _sentence(error)
    click.echo(f"error: {printable(message)}", err=True)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)
    return 1


def _sentence(error: BaseException) -> tuple[str, str]:
    if isinstance(error, PlatformError):
        return error.message, error.hint
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}", ""
    return f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report what it prints"
