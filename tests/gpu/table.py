"""The results of an item as rows of a Markdown table: a figure, its bound, and whether it is within the bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    what: str
    figure: str
    bound: str
    # None: for information only
    holds: bool | None

    @property
    def word(self) -> str:
        return {None: "", True: "ok", False: "**FAIL**"}[self.holds]


@dataclass
class Table:
    rows: list[Row] = field(default_factory=list)
    # the traceback of an item that failed with an exception
    trace: str = ""

    @property
    def failed(self) -> int:
        return sum(row.holds is False for row in self.rows)

    def check(self, what: str, holds: bool, figure: object, bound: object) -> None:
        self.rows.append(Row(what, str(figure), str(bound), bool(holds)))

    def info(self, what: str, figure: object) -> None:
        self.rows.append(Row(what, str(figure), "", None))

    def equal(self, what: str, figure: object, bound: object) -> None:
        self.check(what, figure == bound, figure, bound)

    def near(self, what: str, figure: float, wanted: float, by: float, unit: str = "") -> None:
        self.check(
            what, abs(figure - wanted) <= by, f"{_short(figure)}{unit}", f"{_short(wanted)} ± {_short(by)}{unit}"
        )

    def at_most(self, what: str, figure: float, bound: float, unit: str = "") -> None:
        self.check(what, figure <= bound, f"{_short(figure)}{unit}", f"≤ {_short(bound)}{unit}")

    def not_tested(self, what: str, why: str) -> None:
        """Records a failure: a report must not pass because something was not tested."""
        self.check(what, False, f"not tested: {why}", "tested")

    def markdown(self) -> str:
        return markdown(("test", "result", "bound", ""), ((r.what, r.figure, r.bound, r.word) for r in self.rows))


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |\n" for line in lines
    )


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
