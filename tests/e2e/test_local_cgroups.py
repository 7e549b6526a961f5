"""Control groups of a real kernel: a group that was handed over to us, one that was not, one that is read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.pods.world import needs_root

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
handed = tree / f"aliquot-test-{os.getpid()}"
handed.mkdir()
before = (tree / "cgroup.subtree_control").read_text().split()
(tree / "cgroup.subtree_control").write_text("+" + wanted[0])
(handed / "cgroup.procs").write_text("0")
"""
MOVES = """
found = cgroups.delegate(handed, wanted)
again = cgroups.delegate(handed, wanted)
said = {"place": found == again == {wanted[0]: handed / "aliquot"},
        "ours": cgroups.own_group(tree) == handed,
        "enabled": (handed / "aliquot" / "cgroup.subtree_control").read_text().split() == wanted}
"""
BUSY = """
sleeper = subprocess.Popen(["sleep", "1000"])
try:
    cgroups.delegate(handed, wanted)
    said = {}
except cgroups.CgroupsUnavailable as exc:
    said = {"why": str(exc).replace(str(handed), "GROUP")}
sleeper.kill()
sleeper.wait()
"""
CLEAN = """
(home / "cgroup.procs").write_text("0")
for name in ("aliquot", "aliquot-platform", "."):
    if (handed / name).exists():
        (handed / name).resolve().rmdir()
if wanted[0] not in before:
    (tree / "cgroup.subtree_control").write_text("-" + wanted[0])
print(json.dumps(said))
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


def test_a_group_that_was_handed_over(tree: Path) -> None:
    """In a group of our own we move aside, and jobs get theirs next to us; a second start finds all as it was."""
    said = run(TREE + MOVES + CLEAN, str(tree))
    assert said == {"place": True, "ours": True, "enabled": True}


def test_a_group_with_others_in_it(tree: Path) -> None:
    """Processes that are not ours are not moved: there are no limits then, and it is said why."""
    assert run(TREE + BUSY + CLEAN, str(tree)) == {"why": "other processes are in the control group GROUP"}


def test_read_only() -> None:
    """Where control groups cannot be written, as in many containers, it is said."""
    said = run(READ_ONLY)
    assert said.startswith("memory and CPU limits are not enforced, because /sys/fs/cgroup")
    assert said.endswith("cannot be written")
