"""GPU fractions as in `scenarios.md`, by `runai` commands on a platform with the fake driver."""

from __future__ import annotations

import re

import pytest

from native.rig import CONTEXT
from support.gpus.fake_driver import CARD_MIB
from support.gpus.node import PROJECT, Node
from support.pods.agent_harness import needs_root
from support.waiting import wait_until

pytestmark = [needs_root, pytest.mark.xdist_group("fake-driver")]
FILL = """
gpu = cuda()
got, code = fill(gpu)
print_line(got, code, gpu.total() // MIB)
hold()
"""
# A neighbour that works: on each input line it allocates and frees part of its memory.
WORK = """
gpu = cuda()
kept = gpu.alloc(1024 * MIB)
print_line("works")
for line in sys.stdin:
    free = gpu.alloc(1024 * MIB)
    free()
    print_line("worked")
"""


def test_a_greedy_program_is_limited(node: Node) -> None:
    """F2: a program that allocates all it can gets its half minus its context, then out of memory."""
    node.submit_job("frac05", "-g 0.5")

    program = node.start("frac05", FILL)

    assert program.read_words() == [str(CARD_MIB // 2 - CONTEXT), "2", str(CARD_MIB // 2)]
    assert sum(node.held("frac05").values()) == CARD_MIB // 2
    node.wait_for_event(
        "frac05", rf"\[GPUMemoryLimit\] GPU memory limit {CARD_MIB // 2} MiB reached \(used {CARD_MIB // 2}, asked 2\)"
    )
    assert program.end() == 0


def test_a_program_that_ends_when_it_is_refused(node: Node) -> None:
    """The event shows the memory held at the refusal, also when the process ends before the next check."""
    node.submit_job("frac05", "-g 0.5")

    assert node.run_program("frac05", "print_line(*fill(cuda()))") == [str(CARD_MIB // 2 - CONTEXT), "2"]

    node.wait_for_event("frac05", r"\[GPUMemoryLimit\] GPU memory limit 8192 MiB reached \(used 8192, asked 2\)")


def test_only_the_greedy_job_is_refused(node: Node) -> None:
    """F6: next to a job that reaches its limit, another job on the same GPU gets its whole fraction."""
    node.submit_job("greedy", "-g 0.3")
    node.submit_job("neighbour", "-g 0.7")
    assert node.card("greedy") == node.card("neighbour")
    neighbour = node.start("neighbour", WORK)
    assert neighbour.read_words() == ["works"]
    limit = CARD_MIB * 3 // 10

    greedy = node.start("greedy", FILL)

    got, code, total = map(int, greedy.read_words())
    assert (code, total) == (2, limit)
    assert limit - CONTEXT - 2 < got <= limit - CONTEXT
    neighbour.write_line("again")
    assert neighbour.read_words() == ["worked"]
    other = node.start("neighbour", FILL)
    assert other.read_words()[1:] == ["2", str(CARD_MIB * 7 // 10)]
    # Both have their fraction, to the last block of 2 MiB.
    assert sum(node.held("neighbour").values()) >= CARD_MIB * 7 // 10 - 2
    assert "[GPUMemoryOverrun]" not in node.events("greedy") + node.events("neighbour")
    assert [program.end() for program in (greedy, other, neighbour)] == [0, 0, 0]


def test_a_borrower_returns_memory(node: Node) -> None:
    """F12: request 0.25, limit 0.8; when the owner uses its fraction, the borrower's process is killed, not its pod."""
    node.submit_job("borrower", "-g 0.25 --gpu-portion-limit 0.8")
    assert re.search(r"^ALLOCATED GPUS: 0\.25$", node.events("borrower"), re.MULTILINE)
    lent = CARD_MIB * 8 // 10
    wait_until(lambda: node.limit("borrower") == lent, "the borrower may have 0.8")
    borrower = node.start("borrower", FILL)
    assert int(borrower.read_words()[0]) >= lent - CONTEXT - 2

    # The borrower counts with its request, so three quarters of the same GPU are free for another job.
    node.submit_job("owner", "-g 0.75")
    assert node.card("owner") == node.card("borrower")
    assert borrower.killed()

    owner = node.start("owner", FILL)
    assert owner.read_words() == [str(CARD_MIB * 3 // 4 - CONTEXT), "2", str(CARD_MIB * 3 // 4)]
    node.wait_for_event(
        "borrower",
        r"\[GPUMemoryOverrun\] holds \d+ MiB of GPU memory on \S+; its limit is \d+ MiB; its process \S+ \(\d+\) was",
    )
    assert node.phase("borrower", PROJECT) == "Running"
    assert node.limit("borrower") == CARD_MIB // 4
    assert node.run_program("borrower", "print_line(*fill(cuda()))") == [str(CARD_MIB // 4 - CONTEXT), "2"]
    assert owner.end() == 0


def test_the_job_chooses_its_compute_mode(node: Node) -> None:
    """F9: the driver shares compute time, unless the job asks for leases."""
    node.submit_job("even", "-g 0.25")
    node.submit_job("strict", "-g 0.75 -a aliquot.dev/gpu-compute=strict")
    read_limits = (
        "import os; print(open('/run/gpushare/limits').read().split()[5], *sorted(os.listdir('/run/gpushare')))"
    )

    assert node.run_program("even", read_limits) == ["timesharing", "ledger", "limits"]
    assert node.run_program("strict", read_limits) == ["strict", "gate", "ledger", "limits"]
