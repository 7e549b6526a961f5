"""`nvidia-smi` of pods on simulated nodes: the pod's slices, in the words and layout of NVIDIA's tool.

Runs inside pods as a program of its own (`python smi.py GPUS-FILE ARGUMENTS...`), so: standard library only, and
nothing of ours is imported. The file is JSON: [{"uuid": ..., "model": ..., "memoryMiB": ...}, ...], in the order in
which the pod counts its GPUs.

What is asked for by scripts (table, -L, --query-gpu, -q) has the form that scripts expect. Every answer says that the
GPUs are simulated: in the table and the report as a line, beside lists and CSV on stderr, where no parser trips.
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
# Every field of --query-gpu that has an answer here: unit, and value of one GPU.
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


class Misuse(Exception):
    """What was typed cannot be answered; the text is for who typed it."""


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(message)


def main(file: str, arguments: list[str]) -> int:
    with open(file, encoding="utf-8") as opened:
        listed = json.load(opened)
    gpus = [{**gpu, "index": index, "count": len(listed)} for index, gpu in enumerate(listed)]
    try:
        asked = _parser().parse_args(arguments)
        chosen = _chosen(gpus, asked.id)
        if not chosen:
            sys.stdout.write("No devices were found\n")
            return _NO_DEVICES
        sys.stdout.write(_answer(chosen, asked))
    except Misuse as exc:
        sys.stdout.write(f"{exc}\n\nRun 'nvidia-smi --help' for what there is.\n")
        return _BAD_USE
    if asked.list or asked.query_gpu or asked.query_compute_apps:
        sys.stderr.write(f"nvidia-smi: {SIMULATED}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    words = _Words(prog="nvidia-smi", description=f"The GPUs of this pod, {SIMULATED}.", allow_abbrev=False)
    words.add_argument("-L", "--list-gpus", dest="list", action="store_true", help="list them")
    words.add_argument("-i", "--id", metavar="WHICH", help="only these: numbers or UUIDs, with commas between")
    words.add_argument("--query-gpu", metavar="FIELDS", help=f"as CSV; fields: {', '.join(_FIELDS)}")
    words.add_argument("--query-compute-apps", metavar="FIELDS", help="processes on them, as CSV: there are none")
    words.add_argument("--format", default="csv", metavar="csv[,noheader][,nounits]", help="of what is queried")
    words.add_argument("-q", "--query", action="store_true", help="a report")
    words.add_argument("-d", "--display", metavar="PART", help="of the report: MEMORY, UTILIZATION")
    return words


def _answer(gpus: list[Gpu], asked: argparse.Namespace) -> str:
    if asked.list:
        return "".join(f"GPU {gpu['index']}: {gpu['model']} (UUID: {gpu['uuid']})\n" for gpu in gpus)
    if asked.query_gpu:
        return _csv(gpus, asked.query_gpu, asked.format)
    if asked.query_compute_apps:
        return _apps(asked.query_compute_apps, asked.format)
    if asked.query or asked.display:
        return _report(gpus, (asked.display or "MEMORY,UTILIZATION").upper().split(","))
    return _table(gpus)


def _chosen(gpus: list[Gpu], wanted: str | None) -> list[Gpu]:
    if wanted is None:
        return gpus
    names = wanted.split(",")
    known = {str(gpu["index"]) for gpu in gpus} | {gpu["uuid"] for gpu in gpus}
    for name in names:
        if name not in known:
            raise Misuse(f"No devices were found: {name}")
    return [gpu for gpu in gpus if str(gpu["index"]) in names or gpu["uuid"] in names]


def bus_id(gpu: Gpu) -> str:
    return f"00000000:{gpu['index']:02X}:00.0"


# --- CSV


def _csv(gpus: list[Gpu], fields: str, form: str) -> str:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if _ALIASES.get(name, name) not in _FIELDS:
            raise Misuse(f'Field "{name}" is not a valid field to query.')
    header, units = _form(form)
    rows = [[_cell(gpu, name, units) for name in names] for gpu in gpus]
    if header:
        rows.insert(0, [name + (_SHOWN_UNITS[_FIELDS[_ALIASES.get(name, name)][0]]) for name in names])
    return "".join(", ".join(row) + "\n" for row in rows)


def _cell(gpu: Gpu, name: str, units: bool) -> str:
    unit, value = _FIELDS[_ALIASES.get(name, name)]
    return value(gpu) + (unit if units else "")


def _apps(fields: str, form: str) -> str:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if name not in _APP_FIELDS:
            raise Misuse(f'Field "{name}" is not a valid field to query.')
    header, _ = _form(form)
    shown = [f"{name} [MiB]" if name.startswith("used") else name for name in names]
    return ", ".join(shown) + "\n" if header else ""


def _form(form: str) -> tuple[bool, bool]:
    words = form.split(",")
    if "csv" not in words or set(words) - {"csv", "noheader", "nounits"}:
        raise Misuse(f'"{form}" is not a valid format: csv[,noheader][,nounits]')
    return "noheader" not in words, "nounits" not in words


# --- for people


def _report(gpus: list[Gpu], parts: list[str]) -> str:
    """`-q`: name and value, the values in one column."""
    lines = ["", "==============NVSMI LOG==============", "", _pair(0, "Timestamp", time.ctime())]
    lines += [_pair(0, "Driver Version", SIMULATED), "", _pair(0, "Attached GPUs", str(len(gpus)))]
    for gpu in gpus:
        lines += [f"GPU {bus_id(gpu)}"]
        lines += [_pair(1, "Product Name", gpu["model"]), _pair(1, "GPU UUID", gpu["uuid"])]
        if "MEMORY" in parts:
            total = f"{gpu['memoryMiB']} MiB"
            lines += ["    FB Memory Usage", _pair(2, "Total", total), _pair(2, "Reserved", "0 MiB")]
            lines += [_pair(2, "Used", "0 MiB"), _pair(2, "Free", total)]
        if "UTILIZATION" in parts:
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
    """None: what runs in the pod does not use the GPU."""
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
