"""Jobs that cannot be fenced: not started, or caught by the audit; the event says which. On the stand-in driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import aliquot
from support.gpus.node import PROJECT, PYTHON, Node
from support.gpus.standin import PLACE, standin
from support.pods.world import needs_root

pytestmark = [needs_root, pytest.mark.xdist_group("standin")]
OVERRUN = (
    r"\[GPUMemoryOverrun\] holds 12\d\d\d MiB of GPU memory on GPU-\S+; its limit is 8192 MiB;"
    r" its process \S+ \(\d+\) was killed"
)
PRIVATE = f"""
import shutil
shutil.copy("{PLACE}/libcuda.so.1", "/tmp/libmine.so")
real = c.CDLL
c.CDLL = lambda name: real("/tmp/libmine.so" if name == "libcuda.so.1" else name)
found = cuda()
found.alloc(12000 * MIB)
say("got 12000")
time.sleep(100000)
"""


def test_a_static_program_as_a_job(node: Node) -> None:
    """No library is in it: it is started, takes more than its part, and is caught."""
    # Its input stays open, or it would end by itself.
    script = f"sleep infinity | {PLACE}/raw 12000; sleep infinity"
    node.begin("static", "-g 0.5", command=f'--command sh --args -c --args "{script}"')

    node.tells("static", OVERRUN)

    assert node.held("static") == {}
    assert node.phase("static", PROJECT) == "Running"


def test_a_private_copy_of_the_drivers_library(node: Node) -> None:
    """The library is loaded, and walked around: caught. The killed process was the job's own, so it begins anew."""
    node.begin("private", "-g 0.5", command=f"--command {PYTHON} --args {node.program(PRIVATE)}")

    node.tells("private", OVERRUN)

    node.tells("private", "ended with exit status 137")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Our package, without a sharing library."""
    made = tmp_path / "src"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(aliquot.__file__).parent, made / "aliquot", ignore=ignored)
    return made


@pytest.fixture
def bare(package: Path, native_build: Path, tmp_path: Path) -> Iterator[Node]:
    """A platform that runs from that package."""
    made = Node(tmp_path / "platform", standin(native_build, tmp_path / "standin"), PYTHONPATH=str(package))
    yield made
    made.clean()
    made.down()


def test_a_library_that_was_not_built(bare: Node) -> None:
    """Nothing with a part of a GPU is started, and the event says why; a whole GPU needs no library."""
    bare.up()
    bare.begin("part", "-g 0.5", phases=("Pending", "Failed", "Error"))
    said = "GPUShareNotLoaded: a GPU fraction cannot be enforced: the sharing library was not built for this machine"
    bare.tells("part", said)
    bare.begin("whole", "-g 1")

    assert bare.job_instances().keys() == {"whole"}


def test_a_library_that_no_program_loads(bare: Node, package: Path) -> None:
    """One for another machine, say: the loader passes over it with a warning, so the start check looks for it."""
    (package / "aliquot" / "native" / f"libgpushare-{os.uname().machine}.so").write_text("not for this machine\n")
    bare.up()
    bare.begin("part", "-g 0.5", phases=("Pending", "Failed", "Error"))

    bare.tells("part", r"GPUShareNotLoaded: its GPU fraction cannot be enforced: programs do not load \S+\.so")

    assert not bare.job_instances()
