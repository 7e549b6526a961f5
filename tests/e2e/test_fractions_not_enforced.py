"""Jobs whose fraction cannot be enforced: not started, or stopped by the audit, with an event. On the fake driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import aliquot
from support.gpus.fake_driver import DRIVER_PATH, install_fake_driver
from support.gpus.node import PROJECT, PYTHON, Node
from support.pods.agent_harness import needs_root

pytestmark = [needs_root, pytest.mark.xdist_group("fake-driver")]
OVERRUN = (
    r"\[GPUMemoryOverrun\] holds 12\d\d\d MiB of GPU memory on GPU-\S+; its limit is 8192 MiB;"
    r" its process \S+ \(\d+\) was killed"
)
PRIVATE = f"""
import shutil
shutil.copy("{DRIVER_PATH}/libcuda.so.1", "/tmp/libmine.so")
real = c.CDLL
c.CDLL = lambda name: real("/tmp/libmine.so" if name == "libcuda.so.1" else name)
gpu = cuda()
gpu.alloc(12000 * MIB)
print_line("got 12000")
time.sleep(100000)
"""


def test_a_static_program_as_a_job(node: Node) -> None:
    """It cannot load the library: it starts, takes more than its fraction, and the audit kills it."""
    # Its input stays open: the program ends when its input ends.
    script = f"sleep infinity | {DRIVER_PATH}/raw 12000; sleep infinity"
    node.submit_job("static", "-g 0.5", command=f'--command sh --args -c --args "{script}"')

    node.wait_for_event("static", OVERRUN)

    assert node.held("static") == {}
    assert node.phase("static", PROJECT) == "Running"


def test_a_private_copy_of_the_drivers_library(node: Node) -> None:
    """The library is loaded and bypassed: the audit kills the process, which is the job's command; the pod restarts."""
    node.submit_job("private", "-g 0.5", command=f"--command {PYTHON} --args {node.program(PRIVATE)}")

    node.wait_for_event("private", OVERRUN)

    node.wait_for_event("private", "ended with exit status 137")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package without a sharing library."""
    copy = tmp_path / "src"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(aliquot.__file__).parent, copy / "aliquot", ignore=ignored)
    return copy


@pytest.fixture
def node_without_library(package: Path, native_build: Path, tmp_path: Path) -> Iterator[Node]:
    """A platform that runs from that package."""
    copy = Node(
        tmp_path / "platform", install_fake_driver(native_build, tmp_path / "fake-driver"), PYTHONPATH=str(package)
    )
    yield copy
    copy.clean()
    copy.down()


def test_a_library_that_was_not_built(node_without_library: Node) -> None:
    """A job with a GPU fraction is not started, and the event says why; a whole GPU needs no library."""
    node_without_library.up()
    node_without_library.submit_job("part", "-g 0.5", phases=("Pending", "Failed", "Error"))
    event = "GPUShareNotLoaded: a GPU fraction cannot be enforced: the sharing library was not built for this machine"
    node_without_library.wait_for_event("part", event)
    node_without_library.submit_job("whole", "-g 1")

    assert node_without_library.job_instances().keys() == {"whole"}


def test_a_library_that_no_program_loads(node_without_library: Node, package: Path) -> None:
    """The loader skips a library of another architecture with a warning, so the start is refused."""
    (package / "aliquot" / "native" / f"libgpushare-{os.uname().machine}.so").write_text("not for this machine\n")
    node_without_library.up()
    node_without_library.submit_job("part", "-g 0.5", phases=("Pending", "Failed", "Error"))

    node_without_library.wait_for_event(
        "part", r"GPUShareNotLoaded: its GPU fraction cannot be enforced: programs do not load \S+\.so"
    )

    assert not node_without_library.job_instances()
