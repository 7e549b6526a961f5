"""Parts of a real GPU, end to end: `aliquot up` on this machine's card, jobs by `runai`, PyTorch in them.

Run as root on a machine with one idle GPU, with `aliquot` and `runai` on the PATH and PyTorch for `python3`:

    python3 tests/gpu/end_to_end.py

It prints what it finds and ends with a status other than 0 when something is not as it should be. No setting of the
card is changed. It takes about two minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUERY = ["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
FILL = """
import sys, time, torch
print("total", torch.cuda.mem_get_info()[1] >> 20, torch.cuda.get_device_properties(0).total_memory >> 20, flush=True)
hold = []
try:
    while True: hold.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    print("refused", len(hold) * 64, flush=True)
time.sleep(float(sys.argv[1]))
del hold; torch.cuda.empty_cache()
x = torch.ones(1024, 1024, device="cuda"); print("goes-on", int((x @ x).sum()), flush=True)
"""
BUSY = """
import sys, time, torch
hold = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
x = torch.ones(2048, 2048, device="cuda", dtype=torch.bfloat16)
end = time.time() + float(sys.argv[1])
while time.time() < end: (x @ x); torch.cuda.synchronize()
print("no-error", flush=True)
"""
STEAL = """
import time, torch
hold = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(45)]
start = time.time(); print("stolen", flush=True)
while time.time() < start + 20: time.sleep(0.25); print(f"alive {time.time() - start:.2f}", flush=True)
"""
FAULTS: list[str] = []


def check(holds: bool, what: str) -> None:
    print("ok   " if holds else "FAIL ", what, flush=True)
    if not holds:
        FAULTS.append(what)


def sh(*command: str, timeout: float = 120) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False).stdout


def submit(name: str, *how: str) -> None:
    sh(
        "runai",
        "submit",
        name,
        "-p",
        "team-a",
        "-i",
        "ubuntu",
        "--interactive",
        *how,
        "--command",
        "sleep",
        "--args",
        "infinity",
    )
    deadline = time.monotonic() + 30
    while not re.search(rf"^{name} +Running", sh("runai", "list", "-p", "team-a"), re.MULTILINE):
        if time.monotonic() > deadline:
            sys.exit(f"{name} does not run:\n" + sh("runai", "describe", "job", name, "-p", "team-a"))
        time.sleep(0.3)


def inside(name: str, *command: str) -> subprocess.Popen[str]:
    words = ["runai", "exec", name, "-p", "team-a", "--", *command]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def python(name: str, program: str, *words: str) -> subprocess.Popen[str]:
    return inside(name, "python3", "-c", program, *words)


def told(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=120)[0]


def memory(name: str) -> tuple[int, int]:
    total, used = told(inside(name, *QUERY)).split(",")
    return int(total), int(used)


def slices(device: int) -> None:
    """Every job sees its slice; one that fills it is refused and goes on; the others never notice."""
    for name, part in (("q1", 0.25), ("q2", 0.25), ("h1", 0.5)):
        submit(name, "-g", str(part))
    for name, part in (("q1", 0.25), ("q2", 0.25), ("h1", 0.5)):
        # The driver prints whole MiB; the limit was taken from bytes.
        total, used = memory(name)
        check(abs(total - int(part * device)) <= 1 and used == 0, f"{name}: {total} MiB is {part} of {device}")
    busy = [python(name, BUSY, "25") for name in ("q2", "h1")]
    time.sleep(6)
    filled = told(python("q1", FILL, "3")).split()
    limit = memory("q1")[0]
    check(filled[:3] == ["total", str(limit), str(limit)], f"PyTorch sees {filled[1:3]} of {limit}")
    check(limit - 700 < int(filled[4]) <= limit, f"refused after {filled[4]} MiB and a context")
    check(filled[5] == "goes-on", "the program goes on after the refusal")
    check(all("no-error" in told(one) for one in busy), "the neighbours never noticed")


def thief() -> None:
    """A program that hides the preload file in a namespace of its own is caught by the audit within five seconds."""
    script = 'mount -t tmpfs none /etc && exec python3 -c "$0"'
    said = told(inside("q1", "unshare", "-Urm", "sh", "-c", script, STEAL))
    alive = [float(found) for found in re.findall(r"alive ([\d.]+)", said)]
    check("stolen" in said and bool(alive), "the library alone does not hold who hides it")
    check(bool(alive) and alive[-1] < 5, f"it was stopped after {alive[-1] if alive else '?'} s")
    events = sh("runai", "describe", "job", "q1", "-p", "team-a")
    check("[GPUMemoryOverrun]" in events, "the event says why")
    check("[GPUMemoryLimit]" in events, "the refusal before it was told too")
    check(bool(re.search(r"^STATUS: Running", events, re.MULTILINE)), "the job goes on")


def lending() -> None:
    """A job that has grown gives back when the owner of the memory comes; its process dies, its job does not."""
    sh("runai", "delete", "q1", "q2", "h1", "-p", "team-a")
    submit("b1", "-g", "0.25", "--gpu-portion-limit", "0.8")
    time.sleep(2)
    grown = memory("b1")[0]
    borrower = python("b1", FILL, "60")
    time.sleep(14)
    check(memory("b1")[1] > grown * 0.9, f"a quarter has grown to {grown} MiB")
    start = time.monotonic()
    submit("h2", "-g", "0.5")
    told(borrower)
    check(borrower.returncode == 137, f"the borrower's process was killed after {time.monotonic() - start:.1f} s")
    filled = told(python("h2", FILL, "0")).split()
    check(int(filled[4]) > memory("h2")[0] - 700, f"the owner has all of its part ({filled[4]} MiB)")
    check(bool(re.search(r"^b1 +Running", sh("runai", "list", "-p", "team-a"), re.MULTILINE)), "its job goes on")


def main() -> int:
    name, total, reserved, version = sh(
        "nvidia-smi", "--query-gpu=name,memory.total,memory.reserved,driver_version", "--format=csv,noheader,nounits"
    ).split(", ")
    print(f"{name}, driver {version.strip()}, {total} MiB, {reserved} reserved", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"ALIQUOT_DATA_DIR": f"{folder}/data", "HOME": folder}
        with Path(folder, "log").open("w") as log:
            subprocess.Popen(["aliquot", "up", "--port", "0"], stdout=log, stderr=log, start_new_session=True)
        while not sh("aliquot", "project", "create", "team-a", "--gpu", "1", "--wait"):
            time.sleep(0.5)
        try:
            slices(int(total) - int(reserved))
            thief()
            lending()
        finally:
            sh("aliquot", "down")
    print(f"{len(FAULTS)} faults", flush=True)
    return bool(FAULTS)


if __name__ == "__main__":
    sys.exit(main())
