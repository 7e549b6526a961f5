"""Everything that the GPU sharing library guarantees, on a real card: one command, one report.

    python3 tests/gpu                          all items
    python3 tests/gpu exact kill               some of them
    python3 tests/gpu --report report.md       also as a file

Root, one idle NVIDIA GPU, Python 3.11 or newer; PyTorch, JAX, CuPy and Triton for the items about them. No network and
no compiler of CUDA's. No setting of the card is changed. Ends with a status other than 0 when something failed.

GPU_SUITE_DRIVER names a folder with the fake driver of tests/native, where there is no GPU: then items that need a
real card or a framework are left out, unless they are named.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path

from card import machine, settings
from cost import cost
from frameworks import frameworks
from kill import kill
from lab import Broken, Lab, default_library
from limits import apis, exact, hidden
from mps import mps
from procaddr import procaddr
from shares import shares
from smi import smi
from table import Table, markdown
from together import together
from tries import tries
from whole import end_to_end

Item = Callable[[Lab, Table], None]
# Items that use little of the card and measure no speed: on a machine with enough cores they run in parallel.
SIDE_BY_SIDE: dict[str, Item] = {
    "frameworks": frameworks,  # the longest first
    "kill": kill,
    "procaddr": procaddr,
    "exact": exact,
    "apis": apis,
    "hidden": hidden,
    "smi": smi,
    "tries": tries,
}
ALONE: dict[str, Item] = {"together": together, "cost": cost, "shares": shares, "mps": mps, "end-to-end": end_to_end}
ORDER = [
    "procaddr",
    "exact",
    "apis",
    "hidden",
    "frameworks",
    "smi",
    "together",
    "kill",
    "tries",
    "cost",
    "shares",
    "mps",
]
SETTINGS = "settings of the card"
NEED_A_CARD = {"frameworks", "cost", "shares", "mps"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 tests/gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("items", nargs="*", metavar="ITEM", help=f"of {', '.join([*ORDER, 'end-to-end'])}; default all")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as Markdown, too")
    parser.add_argument("--library", type=Path, default=default_library(), metavar="PATH", help="the library to test")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="a framework that may be missing: torch, jax, cupy, triton",
    )
    parser.add_argument("--seconds", type=float, default=480, metavar="N", help="start no item after this; default 480")
    parser.add_argument("--one-by-one", action="store_true", help="no items side by side")
    given = parser.parse_args()
    unknown = set(given.items) - {*ORDER, "end-to-end"}
    if unknown:
        parser.error(f"there is no item {', '.join(sorted(unknown))}; choose from {', '.join([*ORDER, 'end-to-end'])}")
    if os.geteuid() != 0:
        parser.error("needs root, to mount the library as a container has it")
    if not given.library.is_file():
        parser.error(f"there is no {given.library}; run `make native`, or give --library")
    return given


def chosen(given: argparse.Namespace, fake_driver: bool) -> list[str]:
    if given.items:
        return list(dict.fromkeys(given.items))
    items = [item for item in ORDER if not fake_driver or item not in NEED_A_CARD]
    return [*items, "end-to-end"] if shutil.which("aliquot") and not fake_driver else items


def run(name: str, lab: Lab, until: float) -> tuple[str, Table, float]:
    table, start = Table(), time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    try:
        if start > until:
            table.lacking("all", "no time left; see --seconds")
        else:
            (SIDE_BY_SIDE | ALONE)[name](lab, table)
    except Exception as exc:
        table.trace = traceback.format_exc()
        why = str(exc) if isinstance(exc, Broken) else repr(exc)
        table.check("the item itself", False, f"broke off: {why}", "comes to its end")
    return name, table, time.monotonic() - start


class Results:
    """Results so far; printed and written to the report as they come."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.facts, self.start = path, list[tuple[str, str]](), time.monotonic()
        self.parts: dict[str, str] = {}
        self.failed: dict[str, int] = {}

    def add(self, name: str, table: Table, seconds: float) -> None:
        trace = f"\n```\n{table.trace}```\n" if table.trace else ""
        end = f"{table.failed} FAILED" if table.failed else "ok"
        self.parts[name] = f"## {name}\n\n{table.markdown()}{trace}\n{name}: {end}, {seconds:.0f} s\n"
        if table.failed:
            self.failed[name] = table.failed
        print(self.parts[name], flush=True)
        if self.path:
            self.path.write_text(self.markdown())

    @property
    def verdict(self) -> str:
        if not self.failed:
            return "everything holds"
        return "failed: " + ", ".join(f"{name} ({count})" for name, count in self.failed.items())

    def markdown(self) -> str:
        command = shlex.join(["python3", "tests/gpu", *sys.argv[1:]])
        head = [("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")), *self.facts, ("command", f"`{command}`")]
        head += [("took", f"{time.monotonic() - self.start:.0f} s"), ("verdict", self.verdict)]
        parts = sorted(self.parts, key=lambda name: [*ORDER, "end-to-end", SETTINGS].index(name))
        text = "\n".join(self.parts[name] for name in parts)
        return "# GPU sharing on a real card\n\n" + markdown(("", ""), head) + "\n" + text


def run_all(names: list[str], lab: Lab, at_once: int, until: float, results: Results) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        started = [pool.submit(run, name, lab, until) for name in SIDE_BY_SIDE if name in names]
        for one in as_completed(started):
            results.add(*one.result())
    lab.sweep()
    for name in ALONE:
        if name in names:
            results.add(*run(name, lab, until))
            lab.sweep()


def others_on_the_card(lab: Lab) -> list[int]:
    """Processes on the card; one that has just ended may be listed for a moment longer."""
    nvml = lab.nvml()
    deadline = time.monotonic() + 5
    while (pids := nvml.processes(nvml.device(lab.uuid))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return sorted(pids)


def main() -> int:
    given = arguments()
    driver = os.environ.get("GPU_SUITE_DRIVER")
    lab = Lab(given.library.resolve(), frozenset(given.without), Path(driver).resolve() if driver else None)
    results = Results(given.report)
    try:
        lab.measure()
        busy = others_on_the_card(lab)
        if busy:
            sys.exit(f"the GPU is in use by process {busy[0]}: the figures would be wrong; stop it first")
        results.facts, before = machine(lab), settings(lab)
        side_by_side = not given.one_by_one and not driver and (os.cpu_count() or 1) >= 8
        names, until = chosen(given, driver is not None), results.start + given.seconds
        run_all(names, lab, 4 if side_by_side else 1, until, results)
        table, left = Table(), others_on_the_card(lab)
        table.same("before and after the suite", settings(lab), before)
        table.check("processes left on the card", not left, left or 0, 0)
        results.add(SETTINGS, table, 0)
    except Broken as exc:
        sys.exit(f"the GPU cannot be used: {exc}")
    finally:
        lab.close()
    print(f"{results.verdict}; {time.monotonic() - results.start:.0f} s", flush=True)
    return bool(results.failed)


if __name__ == "__main__":
    sys.exit(main())
