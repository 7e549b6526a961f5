"""Output of the commands: aligned tables, JSON, YAML, ages, and errors in one line.

Data goes to stdout, everything else to stderr. Colour appears only on a terminal, and only on words that say the same.
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
    """Whether stdout is a terminal on which the user has not turned colour off (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def age(seconds: float) -> str:
    """An age in one unit, rounded down: 11s, 2m, 12h, 4d. A negative age is 0s: clocks differ."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def age_of(moment: object, now: float) -> str:
    """The age of an RFC 3339 time; `-` when there is no time."""
    try:
        return age(now - timestamp(moment)) if moment else EMPTY
    except ValueError:
        return EMPTY


def age_or_countdown(moment: object, now: float) -> str:
    """The age of a time in the past, such as 5m; `in 3d` for a time in the future."""
    try:
        left = timestamp(moment) - now if moment else 0
    except ValueError:
        return EMPTY
    return f"in {age(left)}" if left > 0 else age_of(moment, now)


def local_time(moment: object, zone: Any = None) -> str:
    """An RFC 3339 time in the user's time zone: 2026-01-31 13:00:00 CET."""
    try:
        local = datetime.fromtimestamp(timestamp(moment)).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return str(moment)
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")


# .name, .name with \. in it, ['name'], [0], [*], [?(@.type=="Ready")]
_STEP = re.compile(
    r"""\.?(?:\[\?\(@\.(?P<key>\w+)\s*==\s*["'](?P<value>[^"']*)["']\)\]"""
    r"""|\[(?P<all>\*)\]|\[(?P<index>\d+)\]|\['(?P<quoted>[^']+)'\]"""
    r"""|(?P<name>(?:\\.|[^.\[\\])+))"""
)


def jsonpath_value(data: Any, path: str) -> Any:
    """The value at a column's JSONPath: None when there is none, a list when the path contains `[*]`."""
    values = [data]
    is_list = False
    for step in _STEP.finditer(path):
        values = [value for item in values for value in _step(item, step)]
        is_list = is_list or step["all"] is not None
    if is_list:
        return values or None
    return values[0] if values else None


def _step(item: Any, step: re.Match[str]) -> list[Any]:
    if step["key"] is not None:
        items = item if isinstance(item, list) else []
        return [each for each in items if isinstance(each, dict) and str(each.get(step["key"])) == step["value"]][:1]
    if step["all"]:
        return list(item.values()) if isinstance(item, dict) else list(item) if isinstance(item, list) else []
    if step["index"]:
        index = int(step["index"])
        return [item[index]] if isinstance(item, list) and index < len(item) else []
    name = step["quoted"] or re.sub(r"\\(.)", r"\1", step["name"])
    return [item[name]] if isinstance(item, dict) and item.get(name) is not None else []


def cell(value: Any) -> str:
    """A value as a table cell: on one line and without control characters, which could change the terminal."""
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
    """The text with a space for each control character."""
    return "".join(char if char.isprintable() else " " for char in text)


def column_widths(rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def format_row(row: Sequence[str], widths: Sequence[int], *, colour: bool = False) -> str:
    """One row of a table, without padding after the last column."""
    padded = [text.ljust(size) for text, size in zip(row, widths, strict=True)]
    if colour:
        padded = [_colour_cell(text, pad) for text, pad in zip(row, padded, strict=True)]
    return GAP.join(padded).rstrip()


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool = True) -> str:
    """An aligned table, in colour where stdout supports it."""
    lines = [titles, *rows] if headers else list(rows)
    if not lines:
        return ""
    widths = column_widths(lines)
    colour = use_colour()
    return "\n".join(format_row(row, widths, colour=colour) for row in lines)


def _colour_cell(text: str, padded: str) -> str:
    colour = _COLOUR_OF.get(text)
    return click.style(padded, fg=colour) if colour else padded


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def as_yaml(data: Any) -> str:
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # the C one where it is built
        def ignore_aliases(self, data: Any) -> bool:
            return True  # people do not read anchors

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    out: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
    return out.rstrip("\n")


def dump(data: Any, output_format: str) -> str:
    """The data as "json" or "yaml"."""
    return as_json(data) if output_format == "json" else as_yaml(data)


def print_error(error: BaseException) -> int:
    """Print an error and its hint on stderr, and return the exit status."""
    message, hint = _message_and_hint(error)
    click.echo(f"error: {printable(message)}", err=True)
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)
    return 1


def _message_and_hint(error: BaseException) -> tuple[str, str]:
    if isinstance(error, PlatformError):
        return error.message, error.hint
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}", ""
    return f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report what it prints"
