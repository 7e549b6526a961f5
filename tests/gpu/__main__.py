"""Tests everything that the GPU sharing library guarantees on a real GPU and prints a report.

    python3 tests/gpu                          all items
    python3 tests/gpu exact kill               some of them
    python3 tests/gpu --report report.md       also writes the report to a file

Needs root, one idle NVIDIA GPU and Python 3.11 or newer; the item `frameworks` also needs PyTorch, JAX, CuPy and
Triton. Needs no network and no CUDA compiler. Changes no setting of the GPU. Exits with a status other than 0 if a test
failed.

On a machine without a GPU, GPU_SUITE_DRIVER is a folder with the fake driver of tests/native. Items that need a real
GPU or a framework are then skipped unless they are named.
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

from cost import cost
from frameworks import frameworks
from gpu_facts import machine, settings
from kill import kill
from lab import Lab, ProgramFailed, default_library
from limits import apis, exact, hidden
from mps import mps
from procaddr import procaddr
from run_end_to_end import end_to_end
from shares import shares
from smi import smi
from table import Table, markdown
from together import together
from tries import tries

Item = Callable[[Lab, Table], None]
# Items that use little GPU memory and measure no speed: on a machine with enough cores they run in parallel.
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
SETTINGS = "settings of the GPU"
NEED_A_GPU = {"frameworks", "cost", "shares", "mps"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 tests/gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "items", nargs="*", metavar="ITEM", help=f"one of {', '.join([*ORDER, 'end-to-end'])}; default: all"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report to this file, as Markdown")
    parser.add_argument("--library", type=Path, default=default_library(), metavar="PATH", help="the library to test")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="a framework that may be missing: torch, jax, cupy, triton",
    )
    parser.add_argument(
        "--seconds", type=float, default=480, metavar="N", help="start no item after N seconds; default 480"
    )
    parser.add_argument("--one-by-one", action="store_true", help="run no items in parallel")
    args = parser.parse_args()
    unknown = set(args.items) - {*ORDER, "end-to-end"}
    if unknown:
        parser.error(f"there is no item {', '.join(sorted(unknown))}; choose from {', '.join([*ORDER, 'end-to-end'])}")
    if os.geteuid() != 0:
        parser.error("needs root, to mount the library as in a container")
    if not args.library.is_file():
        parser.error(f"there is no {args.library}; run `make native`, or give --library")
    return args


def chosen(args: argparse.Namespace, fake_driver: bool) -> list[str]:
    if args.items:
        return list(dict.fromkeys(args.items))
    items = [item for item in ORDER if not fake_driver or item not in NEED_A_GPU]
    return [*items, "end-to-end"] if shutil.which("aliquot") and not fake_driver else items


def run(name: str, lab: Lab, until: float) -> tuple[str, Table, float]:
    table, start = Table(), time.monotonic()
    print(f"{name} ...", file=sys.stderr, flush=True)
    try:
        if start > until:
            table.not_tested("all", "no time left; see --seconds")
        else:
            (SIDE_BY_SIDE | ALONE)[name](lab, table)
    except Exception as exc:
        table.trace = traceback.format_exc()
        why = str(exc) if isinstance(exc, ProgramFailed) else repr(exc)
        table.check("the item itself", False, f"failed: {why}", "completes")
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
            return "all tests passed"
        return "failed: " + ", ".join(f"{name} ({count})" for name, count in self.failed.items())

    def markdown(self) -> str:
        command = shlex.join(["python3", "tests/gpu", *sys.argv[1:]])
        head = [("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")), *self.facts, ("command", f"`{command}`")]
        head += [("took", f"{time.monotonic() - self.start:.0f} s"), ("verdict", self.verdict)]
        parts = sorted(self.parts, key=lambda name: [*ORDER, "end-to-end", SETTINGS].index(name))
        text = "\n".join(self.parts[name] for name in parts)
        return "# GPU sharing on a real GPU\n\n" + markdown(("", ""), head) + "\n" + text


def run_all(names: list[str], lab: Lab, at_once: int, until: float, results: Results) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        started = [pool.submit(run, name, lab, until) for name in SIDE_BY_SIDE if name in names]
        for future in as_completed(started):
            results.add(*future.result())
    lab.kill_programs()
    for name in ALONE:
        if name in names:
            results.add(*run(name, lab, until))
            lab.kill_programs()


def other_processes(lab: Lab) -> list[int]:
    """Pids of processes on the GPU. Waits up to 5 s: a process that just ended may still be listed."""
    nvml = lab.nvml()
    deadline = time.monotonic() + 5
    while (pids := nvml.processes(nvml.device(lab.uuid))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return sorted(pids)


def main() -> int:
    args = arguments()
    driver = os.environ.get("GPU_SUITE_DRIVER")
    lab = Lab(args.library.resolve(), frozenset(args.without), Path(driver).resolve() if driver else None)
    results = Results(args.report)
    try:
        lab.measure()
        busy = other_processes(lab)
        if busy:
            sys.exit(f"the GPU is in use by process {busy[0]}: the figures would be wrong; stop it first")
        results.facts, before = machine(lab), settings(lab)
        side_by_side = not args.one_by_one and not driver and (os.cpu_count() or 1) >= 8
        names, until = chosen(args, driver is not None), results.start + args.seconds
        run_all(names, lab, 4 if side_by_side else 1, until, results)
        table, left = Table(), other_processes(lab)
        table.equal("before and after the suite", settings(lab), before)
        table.check("processes left on the GPU", not left, left or 0, 0)
        results.add(SETTINGS, table, 0)
    except ProgramFailed as exc:
        sys.exit(f"the GPU cannot be used: {exc}")
    finally:
        lab.close()
    print(f"{results.verdict}; {time.monotonic() - results.start:.0f} s", flush=True)
    return bool(results.failed)


if __name__ == "__main__":
    sys.exit(main())
