"""Fractions of a real GPU, end to end: `aliquot up` on this machine, jobs submitted with `runai` that run PyTorch.

Run as root on a machine with one idle GPU, with `aliquot` and `runai` on the PATH and PyTorch for `python3`:

    python3 tests/gpu/end_to_end.py

Prints one line per check and exits with a status other than 0 if a check failed. Changes no setting of the GPU. Takes
about four minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
import sys, time, torch
hold = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
start = time.time(); print("stolen", flush=True)
while time.time() < start + 20: time.sleep(0.25); print(f"alive {time.time() - start:.2f}", flush=True)
"""
# A copy of the driver under another name, which the library cannot recognise.
COPY = """
import ctypes as c, re, shutil, sys, time
c.CDLL("libcuda.so.1")
with open("/proc/self/maps") as f: path = next(line.split()[-1] for line in f if re.search("/libcuda[.]so", line))
lib = c.CDLL(shutil.copy(path, "/tmp/libmine.so"))
context, p = c.c_void_p(), c.c_uint64()
codes = [lib.cuInit(0), lib.cuDevicePrimaryCtxRetain(c.byref(context), 0), lib.cuCtxSetCurrent(context)]
codes += [lib.cuMemAlloc_v2(c.byref(p), c.c_size_t(1 << 30)) for _ in range(int(sys.argv[1]))]
start = time.time(); print("codes" if any(codes) else "stolen", codes, flush=True)
while time.time() < start + 20: time.sleep(0.25); print(f"alive {time.time() - start:.2f}", flush=True)
"""
# Prints what MPS lets a program use of the GPU, then computes for a while.
SERVED = """
import ctypes as c, time, torch
class Affinity(c.Structure): _fields_ = [("type", c.c_int), ("sms", c.c_uint), ("room", c.c_uint * 8)]
x, may = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16), Affinity()
code = c.CDLL("libcuda.so.1").cuCtxGetExecAffinity(c.byref(may), 0)
print("sms", may.sms if code == 0 else -code, flush=True)
print("total", torch.cuda.mem_get_info()[1] >> 20, flush=True)
end = time.time() + 5
while time.time() < end: (x @ x); torch.cuda.synchronize()
print("no-error", flush=True)
"""
FAILED: list[str] = []


def check(holds: bool, what: str) -> None:
    print("ok   " if holds else "FAIL ", what, flush=True)
    if not holds:
        FAILED.append(what)


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


def output_of(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=120)[0]


def memory(name: str) -> tuple[int, int]:
    total, used = output_of(inside(name, *QUERY)).split(",")
    return int(total), int(used)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s: {what}")
        time.sleep(0.3)


def driver_used_mib() -> int:
    """MiB that the driver holds for all processes."""
    apps = sh("nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits")
    return sum(map(int, apps.split()))


def fractions(device: int) -> None:
    """Every job sees its fraction. A job that fills it is refused and continues; the others are not affected."""
    parts = {"q1": 0.25, "q2": 0.25, "h1": 0.5}
    for name, part in parts.items():
        submit(name, "-g", str(part))
    for name, part in parts.items():
        # The driver prints whole MiB; the limit was taken from bytes.
        total, used = memory(name)
        check(abs(total - int(part * device)) <= 1 and used == 0, f"{name}: {total} MiB is {part} of {device}")
    busy = [python(name, BUSY, "25") for name in ("q2", "h1")]
    wait_until(lambda: all(memory(name)[1] > 2048 for name in ("q2", "h1")), "the neighbours compute")
    listed(device, parts)
    filled = output_of(python("q1", FILL, "3")).split()
    limit = memory("q1")[0]
    check(filled[:3] == ["total", str(limit), str(limit)], f"PyTorch sees {filled[1:3]} of {limit}")
    check(limit - 700 < int(filled[4]) <= limit, f"refused after {filled[4]} MiB and a context")
    check(filled[5] == "goes-on", "the program goes on after the refusal")
    check(all("no-error" in output_of(process) for process in busy), "the neighbours are not affected")


def listed(device: int, parts: dict[str, float]) -> None:
    """`runai list` and `runai list nodes` agree with the driver."""
    jobs = sh("runai", "list", "-p", "team-a")
    for name, part in parts.items():
        listing = re.search(rf"^{name} +Running.* {part:g} ", jobs, re.MULTILINE)
        check(bool(listing), f"runai list: {name} runs with {part:g} GPUs")
    nodes = sh("runai", "list", "nodes")
    row = re.search(r" ([\d.]+)/(\d+) .* (\d+)/(\d+)MiB", nodes)
    if not row:
        return check(False, f"runai list nodes cannot be read: {nodes}")
    gpus = len(sh("nvidia-smi", "-L").strip().splitlines())
    check(int(row[2]) == gpus, f"runai list nodes: {row[2]} GPUs, the driver has {gpus}")
    check(abs(float(row[1]) - sum(parts.values())) < 0.01, f"runai list nodes: {row[1]} GPUs allocated")
    given = sum(memory(name)[0] for name in parts)
    check(int(row[3]) == given, f"runai list nodes: {row[3]} MiB allocated, the jobs see {given}")
    check(abs(int(row[4]) - device) <= 1, f"runai list nodes: {row[4]} MiB, the driver has {device}")
    used, driver = sum(memory(name)[1] for name in parts), driver_used_mib()
    return check(abs(used - driver) <= 2 * len(parts), f"the jobs use {used} MiB, the driver holds {driver}")


def bypasses() -> None:
    """The audit kills a process that bypasses the library within five seconds, with an event."""
    hide = 'mount -t tmpfs none /etc && exec python3 -c "$0" "$1"'
    methods = {
        "q1": ("hides the preload file", ["unshare", "-Urm", "sh", "-c", hide, STEAL]),
        "q2": ("brings its own copy of the driver", ["python3", "-c", COPY]),
    }
    for name, (how, command) in methods.items():
        output = output_of(inside(name, *command, str(memory(name)[0] // 1024 + 10)))
        alive = [float(seconds) for seconds in re.findall(r"alive ([\d.]+)", output)]
        check("stolen" in output and bool(alive), f"{name} {how}: the library alone does not limit it {output[:100]!r}")
        check(bool(alive) and alive[-1] < 5, f"{name} {how}: stopped after {alive[-1] if alive else '?'} s")
        events = sh("runai", "describe", "job", name, "-p", "team-a")
        check("[GPUMemoryOverrun]" in events, f"{name} {how}: the event says why")
        check(bool(re.search(r"^STATUS: Running", events, re.MULTILINE)), f"{name} {how}: the job goes on")
    check("[GPUMemoryLimit]" in sh("runai", "describe", "job", "q1", "-p", "team-a"), "q1 has an event for its refusal")


def dynamic_fractions() -> None:
    """A job that has borrowed memory loses a process when the owner needs the memory; the job goes on."""
    sh("runai", "delete", "q1", "q2", "h1", "-p", "team-a")
    submit("b1", "-g", "0.25", "--gpu-portion-limit", "0.8")
    start = memory("b1")[0]
    deadline = time.monotonic() + 20
    while memory("b1")[0] <= start and time.monotonic() < deadline:
        time.sleep(0.3)
    grown = memory("b1")[0]
    borrower = python("b1", FILL, "60")
    wait_until(lambda: memory("b1")[1] > grown * 0.9, "the borrower takes what it may")
    check(memory("b1")[1] > grown * 0.9, f"a quarter has grown to {grown} MiB")
    begin = time.monotonic()
    submit("h2", "-g", "0.5")
    output_of(borrower)
    check(borrower.returncode == 137, f"the borrower's process was killed after {time.monotonic() - begin:.1f} s")
    filled = output_of(python("h2", FILL, "0")).split()
    check(int(filled[4]) > memory("h2")[0] - 700, f"the owner gets its whole fraction ({filled[4]} MiB)")
    check(bool(re.search(r"^b1 +Running", sh("runai", "list", "-p", "team-a"), re.MULTILINE)), "its job goes on")


def eight_jobs(device: int) -> None:
    """Eight jobs with an eighth of the GPU fill it at once; each gets its fraction and no more."""
    sh("runai", "delete", "b1", "h2", "-p", "team-a")
    parts = {f"e{i}": 0.125 for i in range(1, 9)}
    for name in parts:
        submit(name, "-g", "0.125")
    running = [python(name, FILL, "3") for name in parts]
    filled = [output_of(process).split() for process in running]
    limit = int(0.125 * device)
    check(all(abs(int(words[1]) - limit) <= 1 for words in filled), f"8 jobs of 0.125: each sees {limit} MiB")
    got = [int(words[4]) for words in filled]
    check(min(got) > limit - 800 and max(got) <= limit, f"8 jobs of 0.125: refused after {min(got)} to {max(got)} MiB")
    check(all(words[5] == "goes-on" for words in filled), "8 jobs of 0.125: all go on")
    listed(device, parts)


def mps(device: int) -> None:
    """Two jobs under NVIDIA's Multi-Process Service: each gets its share of compute; it stops with the last job."""
    sh("runai", "delete", *(f"e{i}" for i in range(1, 9)), "-p", "team-a")
    check(not mps_programs(), "no service where no job asks for it")
    for name in ("m1", "m2"):
        submit(name, "-g", "0.25", "--mps")
    running = [python(name, SERVED) for name in ("m1", "m2")]
    wait_until(lambda: "nvidia-cuda-mps-server" in mps_programs(), "the service serves a job")
    results = [dict(line.partition(" ")[::2] for line in output_of(process).splitlines()) for process in running]
    check(all("no-error" in result for result in results), f"two jobs with --mps compute at once {results}")
    limit = int(0.25 * device)
    check(all(abs(int(result["total"]) - limit) <= 1 for result in results), f"each sees {limit} MiB")
    whole = output_of(inside("m1", "env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "python3", "-c", SERVED))
    parts = [int(result["sms"]) / int(whole.split()[1]) for result in results]
    check(all(0.23 <= part <= 0.27 for part in parts), f"each has {parts[0]:.3f} of the multiprocessors")
    filled = output_of(python("m1", FILL, "0")).split()
    check(limit - 700 < int(filled[4]) <= limit, f"refused after {filled[4]} MiB and a context")
    sh("runai", "delete", "m1", "-p", "team-a")
    check(bool(mps_programs()), "the service stays while one job is left")
    sh("runai", "delete", "m2", "-p", "team-a")
    wait_until(lambda: not mps_programs(), "the service stops with the last job", 30)


def mps_programs() -> set[str]:
    """The names of the MPS programs that run on this machine."""
    names = sh("ps", "-eo", "args").splitlines()
    return {word for line in names if (word := line.split()[0].rpartition("/")[2]).startswith("nvidia-cuda-mps")}


def main() -> int:
    name, total, reserved, version = sh(
        "nvidia-smi", "--query-gpu=name,memory.total,memory.reserved,driver_version", "--format=csv,noheader,nounits"
    ).split(", ")
    print(f"{name}, driver {version.strip()}, {total} MiB, {reserved} reserved", flush=True)
    device = int(total) - int(reserved)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"ALIQUOT_DATA_DIR": f"{folder}/data", "HOME": folder}
        with Path(folder, "log").open("w") as log:
            up = ["aliquot", "up", "--port", "0", "--gpu-mps"]
            subprocess.Popen(up, stdout=log, stderr=log, start_new_session=True)
        try:
            create = ("aliquot", "project", "create", "team-a", "--gpu", "1", "--wait")
            wait_until(lambda: bool(sh(*create)), "the platform is up")
            fractions(device)
            bypasses()
            dynamic_fractions()
            eight_jobs(device)
            mps(device)
        finally:
            sh("aliquot", "down")
    print(f"{len(FAILED)} failed", flush=True)
    return bool(FAILED)


if __name__ == "__main__":
    sys.exit(main())
