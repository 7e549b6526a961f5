"""Kills while GPU fractions are in use: of a job's process, and of the whole platform. On the fake driver."""

from __future__ import annotations

import os
import signal

import pytest

from native.rig import CONTEXT
from support.crash.processes import PodProcessMonitor
from support.gpus.fake_driver import CARD_MIB, DRIVER_PATH
from support.gpus.node import PROJECT, PYTHON, Node
from support.pods.agent_harness import needs_root
from support.waiting import wait_until

pytestmark = [needs_root, pytest.mark.xdist_group("fake-driver")]
HALF, QUARTER = CARD_MIB // 2, CARD_MIB // 4
FILL = """
print_line(*fill(cuda()))
hold()
"""
# For a job's own command, which has no input.
FILL_AND_SLEEP = """
print_line(*fill(cuda()))
time.sleep(100000)
"""


def test_memory_of_a_killed_process_is_free(node: Node) -> None:
    """Right after a SIGKILL the next process of the job can use the whole fraction."""
    node.submit_job("dies", "-g 0.5")
    first = node.start("dies", FILL)
    assert first.read_words() == [str(HALF - CONTEXT), "2"]
    (pid,) = node.held("dies")

    os.kill(pid, signal.SIGKILL)

    assert first.killed()
    assert node.held("dies") == {}
    assert node.run_program("dies", "print_line(*fill(cuda()))") == [str(HALF - CONTEXT), "2"]


def test_the_platform_is_killed(node: Node) -> None:
    """After a SIGKILL of the platform jobs keep their memory and their limits, and nothing is allocated twice."""
    monitor = PodProcessMonitor(node.data)
    command = f"--command {PYTHON} --args {node.program(FILL_AND_SLEEP)}"
    parts = {"half": (500, HALF), "quarter": (250, QUARTER), "other": (250, QUARTER)}
    for name, (milli, _) in parts.items():
        node.submit_job(name, f"-g {milli / 1000}", command=command)
    full = {name: mib for name, (_, mib) in parts.items()}
    wait_until(lambda: held(node, *parts) == full, "each job has its fraction")
    instances, before = node.job_instances(), monitor.check()
    assert len({node.card(name) for name in parts}) == 1

    node.kill()

    assert held(node, *parts) == full
    wait_until(lambda: node.job_instances() == instances, "the same processes keep running")
    assert monitor.check() == before
    assert {name: node.limit(name) for name in parts} == full
    # The GPU is full: a new job is placed on the other one.
    node.submit_job("late", "-g 0.5")
    assert node.card("late") != node.card("half")
    assert len(monitor.check()) == 4
    # The ledger is unchanged: another process of a job at its limit gets nothing.
    assert "answered 2" in refusal(node, "half")
    # The audit continues.
    raw = node.execute("quarter", f"exec {DRIVER_PATH}/raw 100")
    assert raw.read_words() == ["got", "0"], "the GPU is full"
    raw = node.execute("late", f"exec {DRIVER_PATH}/raw {HALF + 100}")
    assert raw.read_words() == ["got", str(HALF + 100)]
    assert raw.killed()
    node.wait_for_event("late", r"\[GPUMemoryOverrun\] .*; its process \S+ \(\d+\) was killed")
    assert node.job_instances().keys() >= instances.keys()
    assert [node.phase(name, PROJECT) for name in parts] == ["Running"] * 3


def held(node: Node, *jobs: str) -> dict[str, int]:
    return {job: sum(node.held(job).values()) for job in jobs}


def refusal(node: Node, job: str) -> str:
    program = node.start(job, "cuda()")
    program.end()
    return program.errors
