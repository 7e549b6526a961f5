"""`smi`: nvidia-smi shows the fraction in a tenant with its own PID and mount namespaces and an empty environment."""

from __future__ import annotations

import json
import re
import shutil

from lab import Lab
from table import Table

# Process 1 of its namespace holds 1000 MiB and runs nvidia-smi.
LOOK = """
import subprocess
cuda, nvml = Cuda(), Nvml()
cuda.alloc(1000 * MIB)
device = nvml.device(cuda.uuid())
commands, env = json.loads(sys.argv[1]), json.loads(sys.argv[2])
def run(words): return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout
outputs = {name: run(words) for name, words in commands.items()}
m1, m2 = nvml.memory(device), nvml.memory_v2(device)
step(pid=os.getpid(), v1=[m1.total // MIB, m1.used // MIB, m1.free // MIB],
     v2=[m2.total // MIB, m2.used // MIB, m2.free // MIB, m2.reserved // MIB],
     processes={pid: n // MIB for pid, n in nvml.processes(device).items()}, outputs=outputs)
"""
HOLD = "cuda = Cuda(); cuda.alloc(300 * MIB); step(there=True)"


def smi(lab: Lab, table: Table) -> None:
    program = shutil.which("nvidia-smi")
    if not program and not lab.fake_driver:
        return table.not_tested("nvidia-smi", "no nvidia-smi here")
    limit = lab.fraction_mib(500) if lab.total > 64 << 30 else 4096
    commands = {
        "table": [program],
        "csv": [program, "--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"],
        "q": [program, "-q", "-d", "MEMORY"],
        "apps": [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
    }
    with lab.tenant(1024).start(HOLD) as neighbour:
        neighbour.receive()
        words = json.dumps(commands if program and not lab.fake_driver else {})
        tenant = lab.tenant(limit)
        with tenant.start(LOOK, words, json.dumps(lab.minimal_environment()), own_pids=True) as reader:
            seen, used = reader.receive(), tenant.ledger_mib()
            reader.resume()
        neighbour.resume()
    outputs = seen["outputs"]
    for what, figures, wanted in (
        ("NVML: total, used, free", seen["v1"], [limit, used, limit - used]),
        ("NVML v2: total, used, free, reserved", seen["v2"], [limit, used, limit - used, 0]),
    ):
        # each figure is rounded down separately
        good = figures[0] == limit and all(abs(a - b) <= 1 for a, b in zip(figures, wanted, strict=True))
        table.check(what, good, figures, wanted)
    table.check("NVML: processes", list(seen["processes"]) == ["1"], seen["processes"], "only its own, as number 1")
    if lab.fake_driver:
        return table.info("nvidia-smi", "not on the fake driver")
    usage = re.search(r"(\d+)MiB / +(\d+)MiB", outputs["table"])
    figures = [int(usage[1]), int(usage[2])] if usage else outputs["table"][-200:]
    good = bool(usage) and abs(figures[0] - used) <= 1 and figures[1] == limit
    table.check("table: used / total", good, figures, [used, limit])
    rows = re.findall(r"^\| +0 +N/A +N/A +(\d+) .* (\d+)MiB \|$", outputs["table"], re.MULTILINE)
    table.check("table: processes", [row[0] for row in rows] == ["1"], rows, "only its own, as number 1")
    csv = [int(word) for word in re.findall(r"\d+", outputs["csv"])]
    good = len(csv) == 3 and csv[0] == limit and abs(csv[1] - used) <= 1 and abs(csv[2] - limit + used) <= 1
    table.check("--query-gpu: total, used, free", good, csv, [limit, used, limit - used])
    block = outputs["q"].split("FB Memory Usage")[-1].split("BAR1")[0]
    whole = {name: int(n) for name, n in re.findall(r"(Total|Reserved|Used|Free) +: (\d+) MiB", block)}
    good = whole.get("Total") == limit and abs(whole.get("Used", 0) - used) <= 1 and whole.get("Reserved", 0) == 0
    table.check("-q -d MEMORY", good, whole, {"Total": limit, "Reserved": 0, "Used": used})
    apps = [[int(n) for n in re.findall(r"\d+", line)] for line in outputs["apps"].splitlines()]
    good = len(apps) == 1 and apps[0][0] == 1 and abs(apps[0][1] - used) <= 2
    return table.check("--query-compute-apps: pid, used", good, apps, [[1, used]])
