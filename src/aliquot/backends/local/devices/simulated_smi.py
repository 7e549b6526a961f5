"""`nvidia-smi` for pods on simulated nodes: prints the pod's GPUs in the layout of NVIDIA's tool.

Runs inside pods as a program of its own (`python simulated_smi.py GPUS-FILE ARGUMENTS...`), so it uses the standard
library only and imports nothing of ours. The file is JSON: [{"uuid": ..., "model": ..., "memoryMiB": ...}, ...], in the
order in which the pod numbers its GPUs.

The output that scripts ask for (table, -L, --query-gpu, -q) has the format that scripts expect. Every output says that
the GPUs are simulated: the table and the report in a line of their own, lists and CSV on stderr, where no parser trips.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

SIMULATED = "simulated by Aliquot: no GPU is behind this"
_NO_DEVICES, _BAD_USE = 6, 2  # the tool's own exit statuses
_WIDTH = 89
_COLUMNS = (41, 24, 22)

Gpu = dict[str, Any]
# The fields of --query-gpu that are supported: unit, and value for one GPU.
_FIELDS: dict[str, tuple[str, Callable[[Gpu], str]]] = {
    "timestamp": ("", lambda gpu: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": ("", lambda gpu: "simulated"),
    "count": ("", lambda gpu: str(gpu["count"])),
    "index": ("", lambda gpu: str(gpu["index"])),
    "name": ("", lambda gpu: str(gpu["model"])),
    "uuid": ("", lambda gpu: str(gpu["uuid"])),
    "pci.bus_id": ("", lambda gpu: bus_id(gpu)),
    "persistence_mode": ("", lambda gpu: "Enabled"),
    "pstate": ("", lambda gpu: "P8"),
    "compute_mode": ("", lambda gpu: "Default"),
    "mig.mode.current": ("", lambda gpu: "[N/A]"),
    "memory.total": (" MiB", lambda gpu: str(gpu["memoryMiB"])),
    "memory.reserved": (" MiB", lambda gpu: "0"),
    "memory.used": (" MiB", lambda gpu: "0"),
    "memory.free": (" MiB", lambda gpu: str(gpu["memoryMiB"])),
    "utilization.gpu": (" %", lambda gpu: "0"),
    "utilization.memory": (" %", lambda gpu: "0"),
    "temperature.gpu": ("", lambda gpu: "[N/A]"),
    "power.draw": ("", lambda gpu: "[N/A]"),
    "power.limit": ("", lambda gpu: "[N/A]"),
}
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
_APP_FIELDS = ("gpu_name", "gpu_uuid", "pid", "process_name", "name", "used_memory", "used_gpu_memory")
_SHOWN_UNITS = {" MiB": " [MiB]", " %": " [%]", "": ""}


class UsageError(Exception):
    """The arguments are not supported; the text is for the user."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(file: str, arguments: list[str]) -> int:
    with open(file, encoding="utf-8") as opened:
        given = json.load(opened)
    gpus = [{**gpu, "index": index, "count": len(given)} for index, gpu in enumerate(given)]
    try:
        options = _parser().parse_args(arguments)
        selected = _selected(gpus, options.id)
        if not selected:
            sys.stdout.write("No devices were found\n")
            return _NO_DEVICES
        sys.stdout.write(_output(selected, options))
    except UsageError as exc:
        sys.stdout.write(f"{exc}\n\nRun 'nvidia-smi --help' for the options.\n")
        return _BAD_USE
    if options.list or options.query_gpu or options.query_compute_apps:
        sys.stderr.write(f"nvidia-smi: {SIMULATED}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="nvidia-smi", description=f"The GPUs of this pod, {SIMULATED}.", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", dest="list", action="store_true", help="list the GPUs")
    parser.add_argument("-i", "--id", metavar="WHICH", help="only these GPUs: indices or UUIDs, separated by commas")
    parser.add_argument("--query-gpu", metavar="FIELDS", help=f"print fields as CSV; fields: {', '.join(_FIELDS)}")
    parser.add_argument("--query-compute-apps", metavar="FIELDS", help="print processes as CSV: there are none")
    parser.add_argument("--format", default="csv", metavar="csv[,noheader][,nounits]", help="format of a query")
    parser.add_argument("-q", "--query", action="store_true", help="print a report")
    parser.add_argument("-d", "--display", metavar="PART", help="sections of the report: MEMORY, UTILIZATION")
    return parser


def _output(gpus: list[Gpu], options: argparse.Namespace) -> str:
    if options.list:
        return "".join(f"GPU {gpu['index']}: {gpu['model']} (UUID: {gpu['uuid']})\n" for gpu in gpus)
    if options.query_gpu:
        return _csv(gpus, options.query_gpu, options.format)
    if options.query_compute_apps:
        return _apps(options.query_compute_apps, options.format)
    if options.query or options.display:
        return _report(gpus, (options.display or "MEMORY,UTILIZATION").upper().split(","))
    return _table(gpus)


def _selected(gpus: list[Gpu], wanted: str | None) -> list[Gpu]:
    if wanted is None:
        return gpus
    names = wanted.split(",")
    known = {str(gpu["index"]) for gpu in gpus} | {gpu["uuid"] for gpu in gpus}
    for name in names:
        if name not in known:
            raise UsageError(f"No devices were found: {name}")
    return [gpu for gpu in gpus if str(gpu["index"]) in names or gpu["uuid"] in names]


def bus_id(gpu: Gpu) -> str:
    return f"00000000:{gpu['index']:02X}:00.0"


# --- CSV


def _csv(gpus: list[Gpu], fields: str, csv_format: str) -> str:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if _ALIASES.get(name, name) not in _FIELDS:
            raise UsageError(f'Field "{name}" is not a valid field to query.')
    header, units = _csv_format(csv_format)
    rows = [[_cell(gpu, name, units) for name in names] for gpu in gpus]
    if header:
        rows.insert(0, [name + (_SHOWN_UNITS[_FIELDS[_ALIASES.get(name, name)][0]]) for name in names])
    return "".join(", ".join(row) + "\n" for row in rows)


def _cell(gpu: Gpu, name: str, units: bool) -> str:
    unit, value = _FIELDS[_ALIASES.get(name, name)]
    return value(gpu) + (unit if units else "")


def _apps(fields: str, csv_format: str) -> str:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if name not in _APP_FIELDS:
            raise UsageError(f'Field "{name}" is not a valid field to query.')
    header, _ = _csv_format(csv_format)
    shown = [f"{name} [MiB]" if name.startswith("used") else name for name in names]
    return ", ".join(shown) + "\n" if header else ""


def _csv_format(text: str) -> tuple[bool, bool]:
    options = text.split(",")
    if "csv" not in options or set(options) - {"csv", "noheader", "nounits"}:
        raise UsageError(f'"{text}" is not a valid format: csv[,noheader][,nounits]')
    return "noheader" not in options, "nounits" not in options


# --- report and table


def _report(gpus: list[Gpu], sections: list[str]) -> str:
    """The output of `-q`: names and values, the values in one column."""
    lines = ["", "==============NVSMI LOG==============", "", _pair(0, "Timestamp", time.ctime())]
    lines += [_pair(0, "Driver Version", SIMULATED), "", _pair(0, "Attached GPUs", str(len(gpus)))]
    for gpu in gpus:
        lines += [f"GPU {bus_id(gpu)}"]
        lines += [_pair(1, "Product Name", gpu["model"]), _pair(1, "GPU UUID", gpu["uuid"])]
        if "MEMORY" in sections:
            total = f"{gpu['memoryMiB']} MiB"
            lines += ["    FB Memory Usage", _pair(2, "Total", total), _pair(2, "Reserved", "0 MiB")]
            lines += [_pair(2, "Used", "0 MiB"), _pair(2, "Free", total)]
        if "UTILIZATION" in sections:
            lines += ["    Utilization", _pair(2, "GPU", "0 %"), _pair(2, "Memory", "0 %")]
    return "\n".join([*lines, ""]) + "\n"


def _pair(depth: int, name: str, value: str) -> str:
    return f"{'    ' * depth + name:<50}: {value}"


def _table(gpus: list[Gpu]) -> str:
    line = "+" + "-" * _WIDTH + "+"
    split = "+" + "+".join("-" * width for width in _COLUMNS) + "+"
    head = f"NVIDIA-SMI {SIMULATED}"
    lines = [time.ctime(), line, f"| {head:<{_WIDTH - 2}} |", split]
    lines += _rows(
        ("GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
        ("Fan  Temp   Perf          Pwr:Usage/Cap", "Memory-Usage", "GPU-Util  Compute M."),
        ("", "", "MIG M."),
    )
    lines.append("|" + "+".join("=" * width for width in _COLUMNS) + "|")
    for gpu in gpus:
        used = f"0MiB / {gpu['memoryMiB']}MiB"
        lines += _rows(
            (f"{gpu['index']:3d}  {_short(gpu['model']):<30}On ", f"{bus_id(gpu)} Off", "N/A"),
            ("N/A   N/A    P8              N/A /  N/A", used, "0%      Default"),
            ("", "", "N/A"),
        )
        lines.append(split)
    return "\n".join([*lines, "", *_processes(line)]) + "\n"


def _rows(*rows: tuple[str, str, str]) -> list[str]:
    first, second, third = _COLUMNS
    return [f"| {a:<{first - 2}} | {b:>{second - 2}} | {c:>{third - 2}} |" for a, b, c in rows]


def _short(model: str) -> str:
    return model if len(model) <= 29 else model[:26] + "..."


def _processes(line: str) -> list[str]:
    """An empty list: programs in the pod cannot use a simulated GPU."""
    return [
        line,
        f"| {'Processes:':<{_WIDTH - 2}} |",
        f"|{'  GPU   GI   CI              PID   Type   Process name':<{_WIDTH - 11}}GPU Memory |",
        f"|{'        ID   ID':<{_WIDTH - 11}}Usage      |",
        "|" + "=" * _WIDTH + "|",
        f"|{'  No running processes found':<{_WIDTH}}|",
        line,
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
