"""Control groups of a real kernel: a delegated group, one with other processes in it, one that is read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.pods.agent_harness import needs_root

pytestmark = needs_root

# In a mount namespace of its own, with the tree of version 2 at `tree`: other trees of the machine are not touched. Any
# controller will do, because the kernel's rules are the same for all; which ones version 2 has depends on the machine.
TREE = """
import json, os, subprocess, sys
from pathlib import Path
from aliquot.backends.local.runtimes import cgroups, syscalls

tree = Path(sys.argv[1])
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
syscalls.mount("none", str(tree), "cgroup2")
home = tree / cgroups.own_group(Path("/")).relative_to("/")
wanted = (tree / "cgroup.controllers").read_text().split()[:1]
delegated = tree / f"aliquot-test-{os.getpid()}"
delegated.mkdir()
before = (tree / "cgroup.subtree_control").read_text().split()
(tree / "cgroup.subtree_control").write_text("+" + wanted[0])
(delegated / "cgroup.procs").write_text("0")
"""
MOVES = """
found = cgroups.delegate(delegated, wanted)
again = cgroups.delegate(delegated, wanted)
result = {"parent": found == again == {wanted[0]: delegated / "aliquot"},
        "ours": cgroups.own_group(tree) == delegated,
        "enabled": (delegated / "aliquot" / "cgroup.subtree_control").read_text().split() == wanted}
"""
BUSY = """
sleeper = subprocess.Popen(["sleep", "1000"])
try:
    cgroups.delegate(delegated, wanted)
    result = {}
except cgroups.CgroupsUnavailable as exc:
    result = {"why": str(exc).replace(str(delegated), "GROUP")}
sleeper.kill()
sleeper.wait()
"""
CLEAN = """
(home / "cgroup.procs").write_text("0")
for name in ("aliquot", "aliquot-platform", "."):
    if (delegated / name).exists():
        (delegated / name).resolve().rmdir()
if wanted[0] not in before:
    (tree / "cgroup.subtree_control").write_text("-" + wanted[0])
print(json.dumps(result))
"""
READ_ONLY = """
import json
from aliquot.backends.local.runtimes import syscalls
from aliquot.backends.local.runtimes.cgroups import Cgroups

syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
syscalls.read_only("/sys/fs/cgroup")
print(json.dumps(Cgroups().summary))
"""


def run(script: str, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def test_a_delegated_group(tree: Path) -> None:
    """In a delegated group the platform moves into a child, and jobs get another; a second start changes nothing."""
    result = run(TREE + MOVES + CLEAN, str(tree))
    assert result == {"parent": True, "ours": True, "enabled": True}


def test_a_group_with_other_processes(tree: Path) -> None:
    """Processes of others are not moved: limits are not enforced then, and the reason says so."""
    assert run(TREE + BUSY + CLEAN, str(tree)) == {"why": "other processes are in the control group GROUP"}


def test_read_only() -> None:
    """Where control groups are read-only, as in many containers, the summary says so."""
    result = run(READ_ONLY)
    assert result.startswith("memory and CPU limits are not enforced, because /sys/fs/cgroup")
    assert result.endswith("cannot be written")
