"""Reads CSV files row by row, with errors that name file, line and column.

Reading stops at the first fault: a wrong column is usually wrong in every line.
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
_LARGEST = 1 << 30  # enough for months of a large cluster; stops a disk image
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The text of a file and its name."""

    name: str
    lines: list[str]
    path: Path | None = None  # None: standard input

    @classmethod
    def of(cls, name: str, text: str, path: Path | None = None) -> TraceFile:
        """Comment lines (#) become empty, so that line numbers stay right."""
        return cls(name, ["" if line.startswith("#") else line for line in text.splitlines()], path)

    @property
    def first_line(self) -> str:
        """The first line that is not empty."""
        return next((line for line in self.lines if line.strip()), "")


def read_file(path: str, stdin: Callable[[], bytes] | None = None) -> TraceFile:
    """A file, plain or gzip; `-` is standard input."""
    if path == "-" and stdin is not None:
        return _decode("stdin", stdin(), None)
    try:
        with Path(path).open("rb") as opened:
            return _decode(path, opened.read(_LARGEST + 1), Path(path))
    except OSError as exc:
        raise Invalid(f"{path}: {exc.strerror}") from exc


def _decode(name: str, data: bytes, path: Path | None) -> TraceFile:
    try:
        if data[:2] == _GZIP:
            data = gzip.decompress(data)
        if len(data) > _LARGEST:
            raise Invalid(f"{name}: larger than {_LARGEST >> 30} GiB")
        return TraceFile.of(name, data.decode("utf-8-sig"), path)
    except UnicodeDecodeError as exc:
        raise Invalid(f"{name}: not UTF-8 text (byte {exc.start})") from None
    except (OSError, EOFError, zlib.error):
        raise Invalid(f"{name}: a damaged gzip file", hint="fetch it again") from None


class Row:
    """One row. Values are read by column name, and checked when they are read."""

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
        value_text = self._values.get(column, "").strip()
        if not value_text and default is not None:
            return default
        try:
            value = float(self.text(column))
        except ValueError:
            self.refuse(column, f"{value_text!r} is not a number")
        if not math.isfinite(value) or value < least:
            self.refuse(column, f"{value_text} must be a number of at least {least:g}")
        return value

    def whole(self, column: str, default: int | None = None, least: int = 0) -> int:
        value = self.number(column, default, least)
        if value != int(value):
            self.refuse(column, f"{value:g} must be a whole number")
        return int(value)

    def moment(self, column: str) -> float:
        """Seconds, or a time such as 2026-01-31 13:00:00 (UTC unless it says)."""
        value_text = self.text(column)
        with suppress(ValueError):
            if math.isfinite(value := float(value_text)):
                return value
        try:
            when = datetime.fromisoformat(value_text)
        except ValueError:
            self.refuse(column, f"{value_text!r} is neither seconds nor a time such as 2026-01-31 13:00:00")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()

    def choice(self, column: str, words: Mapping[str, T], default: str) -> T:
        value_text = self.text(column, default).lower()
        if value_text not in words:
            self.refuse(column, f"{value_text!r} must be one of {', '.join(words)}")
        return words[value_text]


def rows_with_header(file: TraceFile, needed: Sequence[str], known: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows below a header of column names. With `known`, any other column is a fault."""
    reader = csv.reader(file.lines)
    columns = [column.strip() for column in next(filter(None, reader), [])]
    missing = [column for column in needed if column not in columns]
    if missing:
        raise Invalid(
            f"{file.name}: line {_line(reader)}: column {missing[0]} is missing",
            hint=f"there must be {', '.join(needed)}",
        )
    unknown = [column for column in columns if known is not None and column not in known]
    if unknown:
        hint = f"there are {', '.join(known or ())}"
        raise Invalid(
            f"{file.name}: line {_line(reader)}: column {unknown[0] or '(empty)'} is not one we know", hint=hint
        )
    if len(set(columns)) < len(columns):
        duplicate = next(column for column in columns if columns.count(column) > 1)
        raise Invalid(f"{file.name}: line {_line(reader)}: column {duplicate} appears twice")
    yield from _rows(file, reader, columns)


def rows_without_header(file: TraceFile, columns: Sequence[str], delimiter: str) -> Iterator[Row]:
    """The rows of a file without a header."""
    yield from _rows(file, csv.reader(file.lines, delimiter=delimiter, quoting=csv.QUOTE_NONE), columns)


def _rows(file: TraceFile, reader: Iterator[list[str]], columns: Sequence[str]) -> Iterator[Row]:
    try:
        for values in reader:
            if not any(value.strip() for value in values):
                continue
            line = _line(reader)
            if len(values) != len(columns):
                raise Invalid(f"{file.name}: line {line}: has {len(values)} columns and must have {len(columns)}")
            yield Row(file.name, line, dict(zip(columns, values, strict=True)))
    except csv.Error as exc:
        raise Invalid(f"{file.name}: {exc}") from None


def _line(reader: Iterator[list[str]]) -> int:
    number: int = reader.line_num  # type: ignore[attr-defined]  # csv has no public type for its reader
    return max(number, 1)
