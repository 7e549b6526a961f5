"""Processes that allocate and free in every way and are killed anywhere, against a plain model of the ledger.

After every order: the slots add up to the total, the total is within the limit, each process's slot is what the model
says and what the card holds for it, and the driver's answer is the one the model expects.
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
from native.test_ledger_life import places

LIMIT = 4200
WAYS = ["alloc", "pitch", "managed", "async", "from-pool", "create", "mapped"]
WAYS += ["array", "array3d", "mipmap", "graph"]
PLACES = places()
SIZES = [1, 513, 70_000, MIB - 1, MIB + 1, 2 * MIB, 3 * MIB + 1, 31 * MIB, 33 * MIB, 150 * MIB, 400 * MIB, 900 * MIB]

KINDS = ["take"] * 10 + ["free"] * 4 + ["empty", "context", "end", "fault", "kill", "exit"]

Order = tuple[str, int, str, int, int]  # what, who, and as far as it matters: way, size, any number
orders: st.SearchStrategy[Order] = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 3),
    st.sampled_from(WAYS),
    st.sampled_from(SIZES),
    st.integers(0, 50),
)


class World:
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
        self.faulty: set[int] = set()
        self.names = 0

    def tell(self, who: int | str, *words: object) -> str:
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

    def obey(self, order: Order) -> None:
        kind, who, way, number, nth = order
        if kind in ("free", "end", "empty") and who not in self.processes:
            return
        if kind == "empty":
            while who in self.processes and self.processes[who].pieces:
                self.obey(("free", who, way, number, nth))
            return
        process = self.processes.setdefault(who, Process())
        wanted = copy.deepcopy(process)
        words: tuple[object, ...]
        if kind == "take":
            size = max(1, number // (2 * MIB)) * 2 * MIB if way in ("create", "mapped") else number
            self.names += 1
            words = ("take", way, size, self.names)
            wanted.contexts = max(wanted.contexts, 0)
            if self._fits(who, wanted):  # the context comes first, and stays when the rest is refused
                process.contexts = wanted.contexts
            wanted.take(way, size, str(self.names))
        elif kind == "free":
            if not process.pieces:
                return
            name = list(process.pieces)[nth % len(process.pieces)]
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
            self.faulty.add(who)
            words = ("fault", f"{PLACES[nth % len(PLACES)]}:{1 + nth % 3}")
        else:
            words = (kind,)
        self._settle(who, wanted, self.tell(who, *words))

    def _fits(self, who: int, wanted: Process) -> bool:
        others = sum(p.held() for w, p in self.processes.items() if w != who)
        return wanted.held() <= self.processes[who].held() or others + wanted.held() <= LIMIT * MIB

    def _settle(self, who: int, wanted: Process, answer: str) -> None:
        if answer == "dead":
            del self.processes[who], self.pids[who]
            self.faulty.discard(who)
            assert self.tell("-", "look") == "0"  # whoever looks next gives back what the dead held
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
            assert overhead == (CONTEXT * MIB if process.contexts >= 0 else 0)  # nothing but the context went unseen
            assert soft == process.managed()
            assert on_card.get(self.pids[who], 0) == process.held() - process.managed()
        assert ledger.total() == self.held()

    def _card(self) -> dict[int, int]:
        """Bytes by process on the first card, from the fake driver's own file."""
        raw = (self.rig.folder / "card").read_bytes() if (self.rig.folder / "card").exists() else b""
        clients = (struct.unpack_from("<iiQ", raw, at) for at in range(48, len(raw) - 39, 40))
        return {pid: held for used, pid, held in clients if used}

    def close(self) -> None:
        for who in list(self.processes):
            if who in self.pids:
                assert self.tell(who, "exit") == "dead"
        assert self.tell("-", "look") == "0"
        if self.rig.ledger.exists():
            ledger = Ledger(str(self.rig.ledger))
            assert (ledger.slots(), ledger.total()) == ({}, 0)


def follow(built: Path, history: list[Order]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Rig(built, Path(folder)))
        with world.host:
            for order in history:
                world.obey(order)
                world.check()
            for who in range(4):
                world.obey(("empty", who, "", 0, 0))
                world.check()
            world.close()


@settings(max_examples=40, deadline=None)
@given(history=st.lists(orders, min_size=30, max_size=60))
def test_the_ledger_follows_the_model(native_build: Path, history: list[Order]) -> None:
    """With up to four processes, any commands and any kills, ledger, card and model agree after each."""
    follow(native_build, history)


@pytest.mark.soak
@settings(max_examples=3_000, deadline=None)
@given(history=st.lists(orders, min_size=30, max_size=120))
def test_the_ledger_follows_the_model_for_long(native_build: Path, history: list[Order]) -> None:
    """The same with thousands of longer histories."""
    follow(native_build, history)
