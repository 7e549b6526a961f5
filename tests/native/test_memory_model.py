"""Processes that allocate, free and are killed at any point, compared with a model of the ledger.

After every command: the slots add up to the total, the total is within the limit, each process's slot equals the model
and the driver's figure, and the driver's answer is the expected one.
"""

from __future__ import annotations

import copy
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.cu import Ledger
from native.memory_model import MIB, Process
from native.rig import CONTEXT, HERE, Rig
from native.test_ledger_file import fault_points

LIMIT = 4200
ALLOCATORS = ["alloc", "pitch", "managed", "async", "from-pool", "create", "mapped"]
ALLOCATORS += ["array", "array3d", "mipmap", "graph"]
FAULT_POINTS = fault_points()
SIZES = [1, 513, 70_000, MIB - 1, MIB + 1, 2 * MIB, 3 * MIB + 1, 31 * MIB, 33 * MIB, 150 * MIB, 400 * MIB, 900 * MIB]

KINDS = ["take"] * 10 + ["free"] * 4 + ["empty", "context", "end", "fault", "kill", "exit"]

Order = tuple[str, int, str, int, int]  # command, process, allocator, size, index (unused ones are ignored)
orders: st.SearchStrategy[Order] = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.sampled_from(ALLOCATORS),
    st.sampled_from(SIZES),
    st.integers(0, 50),
)


class ModelledContainer:
    """The real processes and the model of them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        environment = rig.environment(limit=LIMIT, GPUSHARE_CONTEXT_MIB=str(CONTEXT))
        self.host = subprocess.Popen(
            [sys.executable, HERE / "memory_host.py"],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes: dict[int, Process] = {}
        self.pids: dict[int, int] = {}
        self.with_fault: set[int] = set()
        self.names = 0

    def send(self, who: int | str, *words: object) -> str:
        assert self.host.stdin is not None
        assert self.host.stdout is not None
        self.host.stdin.write(" ".join(map(str, (who, *words))) + "\n")
        self.host.stdin.flush()
        pid, answer = self.host.stdout.readline().split()
        if isinstance(who, int):
            self.pids[who] = int(pid)
        return answer

    def held(self) -> int:
        return sum(p.held() for p in self.processes.values())

    def run(self, order: Order) -> None:
        kind, who, allocator, number, nth = order
        if kind in ("free", "end", "empty") and who not in self.processes:
            return
        if kind == "empty":
            while who in self.processes and self.processes[who].allocations:
                self.run(("free", who, allocator, number, nth))
            return
        process = self.processes.setdefault(who, Process())
        wanted = copy.deepcopy(process)
        words: tuple[object, ...]
        if kind == "take":
            size = max(1, number // (2 * MIB)) * 2 * MIB if allocator in ("create", "mapped") else number
            self.names += 1
            words = ("take", allocator, size, self.names)
            wanted.contexts = max(wanted.contexts, 0)
            if self._fits(who, wanted):  # the context is created first and stays when the allocation is refused
                process.contexts = wanted.contexts
            wanted.take(allocator, size, str(self.names))
        elif kind == "free":
            if not process.allocations:
                return
            name = list(process.allocations)[nth % len(process.allocations)]
            words = ("free", name)
            wanted.free(name)
        elif kind == "context":
            words = ("context",)
            if process.contexts < 0 and self._fits(who, Process(contexts=0)):
                process.contexts = 0
            wanted.contexts = max(wanted.contexts, 0) + 1
        elif kind == "end":
            if process.contexts < 1:
                return
            words = ("end",)
            wanted.end()
        elif kind == "fault":
            self.with_fault.add(who)
            words = ("fault", f"{FAULT_POINTS[nth % len(FAULT_POINTS)]}:{1 + nth % 3}")
        else:
            words = (kind,)
        self._check_answer(who, wanted, self.send(who, *words))

    def _fits(self, who: int, wanted: Process) -> bool:
        others = sum(p.held() for w, p in self.processes.items() if w != who)
        return wanted.held() <= self.processes[who].held() or others + wanted.held() <= LIMIT * MIB

    def _check_answer(self, who: int, wanted: Process, answer: str) -> None:
        if answer == "dead":
            del self.processes[who], self.pids[who]
            self.with_fault.discard(who)
            assert self.send("-", "query") == "0"  # the next query reaps the dead process
        elif self._fits(who, wanted):
            assert answer == "0"
            self.processes[who] = wanted
        else:
            assert answer == "2"

    def check(self) -> None:
        if not self.rig.ledger.exists():
            assert self.held() == 0
            return
        ledger = Ledger(str(self.rig.ledger))
        slots, on_card = ledger.slots(), self._card()
        assert ledger.sum() == ledger.total() <= LIMIT * MIB
        for who, process in self.processes.items():
            charged, overhead, soft = slots.get(self.pids[who], (0, 0, 0))
            assert charged + overhead == process.held(), (who, process)
            assert overhead == (CONTEXT * MIB if process.contexts >= 0 else 0)  # no other memory is untracked
            assert soft == process.managed()
            assert on_card.get(self.pids[who], 0) == process.held() - process.managed()
        assert ledger.total() == self.held()

    def _card(self) -> dict[int, int]:
        """Bytes by process on the first GPU, from the fake driver's file."""
        raw = (self.rig.folder / "card").read_bytes() if (self.rig.folder / "card").exists() else b""
        clients = (struct.unpack_from("<iiQ", raw, at) for at in range(48, len(raw) - 39, 40))
        return {pid: held for used, pid, held in clients if used}

    def close(self) -> None:
        for who in list(self.processes):
            if who in self.pids:
                assert self.send(who, "exit") == "dead"
        assert self.send("-", "query") == "0"
        if self.rig.ledger.exists():
            ledger = Ledger(str(self.rig.ledger))
            assert (ledger.slots(), ledger.total()) == ({}, 0)


def run_history(built: Path, history: list[Order]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        container = ModelledContainer(Rig(built, Path(folder)))
        with container.host:
            for order in history:
                container.run(order)
                container.check()
            for who in range(4):
                container.run(("empty", who, "", 0, 0))
                container.check()
            container.close()


@settings(max_examples=40, deadline=None)
@given(history=st.lists(orders, min_size=30, max_size=60))
def test_the_ledger_follows_the_model(native_build: Path, history: list[Order]) -> None:
    """With up to four processes, any commands and kills, the ledger, the driver and the model agree after each."""
    run_history(native_build, history)


@pytest.mark.soak
@settings(max_examples=3_000, deadline=None)
@given(history=st.lists(orders, min_size=30, max_size=120))
def test_the_ledger_follows_the_model_for_long(native_build: Path, history: list[Order]) -> None:
    """The same with thousands of longer histories."""
    run_history(native_build, history)
