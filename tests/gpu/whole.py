"""`end-to-end`: the installed product on the card (end_to_end.py), its lines as rows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from lab import HERE, Lab
from table import Table


def end_to_end(lab: Lab, table: Table) -> None:
    if not shutil.which("aliquot"):
        return table.lacking("all", "no aliquot on the PATH")
    command = [sys.executable, str(HERE / "end_to_end.py")]
    done = subprocess.run(command, env=lab.environment(), capture_output=True, text=True, timeout=540, check=False)
    for word, what in re.findall(r"^(ok|FAIL) +(.*)$", done.stdout, re.MULTILINE):
        table.check(what, word == "ok", "as it should be" if word == "ok" else "not so", "")
    rest = [line for line in (done.stdout + done.stderr).splitlines() if not re.match(r"(ok|FAIL) ", line)]
    return table.check("its end", done.returncode == 0, f"status {done.returncode} {' / '.join(rest[-3:])}", "status 0")
