"""`end-to-end`: runs end_to_end.py, which tests the installed product on the GPU; its lines become rows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from lab import HERE, Lab
from table import Table


def end_to_end(lab: Lab, table: Table) -> None:
    if not shutil.which("aliquot"):
        return table.not_tested("all", "no aliquot on the PATH")
    command = [sys.executable, str(HERE / "end_to_end.py")]
    done = subprocess.run(command, env=lab.environment(), capture_output=True, text=True, timeout=540, check=False)
    for word, what in re.findall(r"^(ok|FAIL) +(.*)$", done.stdout, re.MULTILINE):
        table.check(what, word == "ok", "ok" if word == "ok" else "failed", "")
    rest = [line for line in (done.stdout + done.stderr).splitlines() if not re.match(r"(ok|FAIL) ", line)]
    return table.check(
        "exit status", done.returncode == 0, f"status {done.returncode} {' / '.join(rest[-3:])}", "status 0"
    )
