"""Tables in files: rows with their line numbers, and values that say where they are wrong.

A fault is one line: file, line, column, what must hold there. The first fault ends the reading, because one wrong
column is wrong in every line.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from aliquot.errors import Invalid

T = TypeVar("T")
_LARGEST = 1 << 30  # months of a large cluster, and not a disk image
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a file and its name."""

    name: str
    lines: list[str]
    path: Path | None = None  # None: standard input

    @classmethod
    def of(cls, name: str, text: str, path: Path | None = None) -> Text:
        """Lines that begin with # are for people; they count as lines, and are empty."""
        return cls(name, ["" if line.startswith("#") else line for line in text.splitlines()], path)

    @property
    def first(self) -> str:
        """The first line that says something."""
        return next((line for line in self.lines if line.strip()), "")


def read(path: str, stdin: Callable[[], bytes] | None = None) -> Text:
    """A file, also one that gzip has packed; `-` is standard input."""
    if path == "-" and stdin is not None:
        return _text("stdin", stdin(), None)
    try:
        with Path(path).open("rb") as opened:
            return _text(path, opened.read(_LARGEST + 1), Path(path))
    except OSError as exc:
        raise Invalid(f"{path}: {exc.strerror}") from exc


def _text(name: str, data: bytes, path: Path | None) -> Text:
    try:
        if data[:2] == _GZIP:
            data = gzip.decompress(data)
        if len(data) > _LARGEST:
            raise Invalid(f"{name}: larger than {_LARGEST >> 30} GiB")
        return Text.of(name, data.decode("utf-8-sig"), path)
    except UnicodeDecodeError as exc:
        raise Invalid(f"{name}: not UTF-8 text (byte {exc.start})") from None
    except (OSError, EOFError, zlib.error):
        raise Invalid(f"{name}: a damaged gzip file", hint="fetch it again") from None


class Row:
    """One line of a table. Each value is asked for by column, and is checked when it is asked for."""

    def __init__(self, file: str, line: int, values: Mapping[str, str]) -> None:
        self._file, self._line, self._values = file, line, values

    def refuse(self, column: str, text: str) -> NoReturn:
        raise Invalid(f"{self._file}: line {self._line}, column {column}: {text}")

    def text(self, column: str, default: str | None = None) -> str:
        value = self._values.get(column, "").strip()
        if not value and default is None:
            self.refuse(column, "is empty; every job needs it")
        return value or default or ""

    def number(self, column: str, default: float | None = None, least: float = 0) -> float:
        shown = self._values.get(column, "").strip()
        if not shown and default is not None:
            return default
        try:
            value = float(self.text(column))
        except ValueError:
            self.refuse(column, f"{shown!r} is not a number")
        if not math.isfinite(value) or value < least:
            self.refuse(column, f"{shown} must be a number of at least {least:g}")
        return value

    def whole(self, column: str, default: int | None = None, least: int = 0) -> int:
        value = self.number(column, default, least)
        if value != int(value):
            self.refuse(column, f"{value:g} must be a whole number")
        return int(value)

    def moment(self, column: str) -> float:
        """Seconds, or a time such as 2026-01-31 13:00:00 (UTC unless it says)."""
        shown = self.text(column)
        with suppress(ValueError):
            if math.isfinite(value := float(shown)):
                return value
        try:
            when = datetime.fromisoformat(shown)
        except ValueError:
            self.refuse(column, f"{shown!r} is neither seconds nor a time such as 2026-01-31 13:00:00")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

    def choice(self, column: str, words: Mapping[str, T], default: str) -> T:
        shown = self.text(column, default).lower()
        if shown not in words:
            self.refuse(column, f"{shown!r} must be one of {', '.join(words)}")
        return words[shown]


def table(text: Text, needed: Sequence[str], known: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows below a line of column names. With `known`, a column that is not among them is a fault."""
    reader = csv.reader(text.lines)
    titles = [title.strip() for title in next(filter(None, reader), [])]
    missing = [column for column in needed if column not in titles]
    if missing:
        raise Invalid(
            f"{text.name}: line {_line(reader)}: column {missing[0]} is missing",
            hint=f"there must be {', '.join(needed)}",
        )
    strange = [title for title in titles if known is not None and title not in known]
    if strange:
        hint = f"there are {', '.join(known or ())}"
        raise Invalid(
            f"{text.name}: line {_line(reader)}: column {strange[0] or '(empty)'} is not one we know", hint=hint
        )
    if len(set(titles)) < len(titles):
        twice = next(title for title in titles if titles.count(title) > 1)
        raise Invalid(f"{text.name}: line {_line(reader)}: column {twice} stands twice")
    yield from _rows(text, reader, titles)


def untitled(text: Text, titles: Sequence[str], delimiter: str) -> Iterator[Row]:
    """The rows of a file that does not name its columns."""
    yield from _rows(text, csv.reader(text.lines, delimiter=delimiter, quoting=csv.QUOTE_NONE), titles)


def _rows(text: Text, reader: Iterator[list[str]], titles: Sequence[str]) -> Iterator[Row]:
    try:
        for values in reader:
            if not any(value.strip() for value in values):
                continue
            line = _line(reader)
            if len(values) != len(titles):
                raise Invalid(f"{text.name}: line {line}: has {len(values)} columns and must have {len(titles)}")
            yield Row(text.name, line, dict(zip(titles, values, strict=True)))
    except csv.Error as exc:
        raise Invalid(f"{text.name}: {exc}") from None


def _line(reader: Iterator[list[str]]) -> int:
    number: int = reader.line_num  # type: ignore[attr-defined]  # a csv reader, of which there is no public type
    return max(number, 1)
