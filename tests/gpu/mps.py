"""`mps`: the limit is also enforced under NVIDIA's Multi-Process Service, which is stopped afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from lab import MIB, Lab
from table import Table

FILL = """
cuda = Cuda()
start, total = cuda.info()
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
step(got=2 * len(frees), code=code, total=total // MIB)
for free in frees: free()
report(before=start // MIB, after=cuda.info()[0] // MIB)
"""
# The number of multiprocessors that a client may use, and its speed with them.
SPEED = """
class Affinity(c.Structure):
    _fields_ = [("type", c.c_int), ("sms", c.c_uint), ("room", c.c_uint * 8)]
cuda, may, count = Cuda(), Affinity(), c.c_int()
code = cuda.status("cuCtxGetExecAffinity", c.byref(may), 0)
cuda.call("cuDeviceGetAttribute", c.byref(count), SMS, 0)
kernel = Kernel(cuda, 1000, float(sys.argv[1]), blocks=int(sys.argv[2]))
for _ in range(20): kernel()
cuda.sync()
start = time.monotonic()
for _ in range(200): kernel()
cuda.sync()
report(seconds=time.monotonic() - start, sms=may.sms if code == 0 else count.value)
"""


def mps(lab: Lab, table: Table) -> None:
    control = shutil.which("nvidia-cuda-mps-control")
    if not control:
        return table.not_tested("all", "no nvidia-cuda-mps-control here")
    folder = lab.folder / "mps"
    folder.mkdir()
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    before = _service()
    subprocess.run([control, "-d"], env=os.environ | env, check=True, timeout=60, capture_output=True)
    try:
        _limit(lab, table, env)
        _percentage(lab, table, env)
    finally:
        quit_result = subprocess.run(
            [control], input="quit\n", env=os.environ | env, text=True, timeout=60, check=False, capture_output=True
        )
    deadline = time.monotonic() + 20
    while _service() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    left = _service() - before
    return table.check(
        "service stopped afterwards", not left, f"{len(left)} processes left {quit_result.stderr.strip()}", "none"
    )


def _limit(lab: Lab, table: Table, env: dict[str, str]) -> None:
    limit = lab.small_limit
    tenant = lab.tenant(limit)
    with tenant.start(FILL, env=env) as program:
        full = program.receive()
        ledger = tenant.ledger_mib()
        served = any("server" in name for name in _names().values())
        back = program.resume_and_receive()
    table.check("a server runs for the client", served, served, True)
    table.check(
        "obtained",
        full["code"] == 2,
        f"{full['got']} MiB and a context of {ledger - full['got']}, code {full['code']}",
        "code 2",
    )
    table.near("ledger", ledger, limit, 2, " MiB")
    table.near("obtained and context", full["got"] + lab.context // MIB, limit, 8, " MiB")
    table.equal("total", full["total"], limit)
    table.near("free again after freeing", back["after"], back["before"], 2, " MiB")


def _percentage(lab: Lab, table: Table, env: dict[str, str]) -> None:
    """With 25 % of the threads a client gets a quarter of the multiprocessors and of the speed."""
    results = {}
    for percent in ("100", "25"):
        more = env | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent}
        with lab.tenant(lab.small_limit).start(SPEED, lab.rounds, 8 * lab.sms, env=more) as program:
            results[percent] = program.receive()
    whole, part = results["100"], results["25"]
    table.near("25 % of the threads: of the multiprocessors", 100 * part["sms"] / (whole["sms"] or 1), 25, 2, " %")
    table.near("25 % of the threads: of the speed", 100 * whole["seconds"] / part["seconds"], 25, 4, " %")


def _names() -> dict[int, str]:
    names = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            names[int(entry.name)] = words[0].decode(errors="replace")
    return names


def _service() -> set[int]:
    return {pid for pid, name in _names().items() if "nvidia-cuda-mps" in name}
