"""The two implementations of the lease rules behind one interface: the Python model, and lease.c through ctypes."""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Protocol, assert_never

from native import lease_model as m


class Tenant(c.Structure):
    _fields_ = [
        ("name", c.c_char * 64), ("weight", c.c_uint32), ("strict", c.c_uint32), ("vtime", c.c_uint64),
        ("held", c.c_uint64), ("active", c.c_uint64), ("period", c.c_uint64), ("spent", c.c_uint64),
        ("asked", c.c_uint64), ("handing", c.c_uint64), ("waits_for_work", c.c_uint32), ("futex", c.c_uint32),
        ("queued", c.c_uint32), ("unused", c.c_uint32 * 3),
    ]  # fmt: skip

    def plain(self) -> m.Tenant:
        return m.Tenant(
            self.name.decode(), self.weight, bool(self.strict), self.vtime, self.held, self.active, self.period,
            self.spent, self.asked, self.handing, self.waits_for_work, self.futex, self.queued,
        )  # fmt: skip


class Gate(c.Structure):
    """The gate file that tenants share (gate.h)."""

    _fields_ = [
        ("head", c.c_uint8 * 80), ("holder", c.c_uint32), ("unused", c.c_uint32), ("start", c.c_uint64),
        ("end", c.c_uint64), ("space", c.c_uint8 * 152), ("tenant", Tenant * m.TENANTS),
    ]  # fmt: skip

    def plain(self) -> m.State:
        holder = self.holder - 1 if self.holder else None
        return m.State(tuple(t.plain() for t in self.tenant), holder, self.start, self.end)


class LeaseRules(Protocol):
    def step(self, event: m.Event, now: int) -> list[m.Result]: ...

    def state(self) -> m.State: ...

    def crowded(self, me: int, now: int) -> bool: ...


class Model:
    def __init__(self) -> None:
        self._state = m.State()

    def step(self, event: m.Event, now: int) -> list[m.Result]:
        self._state, actions = m.step(self._state, event, now)
        return actions

    def state(self) -> m.State:
        return self._state

    def crowded(self, me: int, now: int) -> bool:
        return self._state.crowded(me, now)


class Library:
    """lease.c, compiled alone."""

    def __init__(self, path: Path) -> None:
        self._lib = lib = c.CDLL(str(path))
        lib.lease_ask.argtypes = [c.c_void_p, c.c_int, c.c_uint64, c.c_void_p]
        lib.lease_drained.argtypes = lib.lease_crowded.argtypes = [c.c_void_p, c.c_int, c.c_uint64]
        lib.lease_drained.restype = lib.lease_crowded.restype = c.c_bool
        lib.lease_join.argtypes = [c.c_void_p, c.c_char_p, c.c_uint32, c.c_bool, c.c_uint64]
        lib.lease_wait_begins.argtypes, lib.lease_wait_ends.argtypes = [c.c_void_p], [c.c_void_p, c.c_uint64]
        lib.lease_launched.argtypes = lib.lease_emptied.argtypes = [c.c_void_p, c.c_void_p]
        self._gate = Gate()

    def _tenant(self, index: int) -> c._Pointer[Tenant]:
        return c.pointer(self._gate.tenant[index])

    def step(self, event: m.Event, now: int) -> list[m.Result]:
        gate = c.byref(self._gate)
        match event:
            case m.Join(name, weight, strict):
                slot = self._lib.lease_join(gate, name.encode(), weight, strict, now)
                return [m.Joined(slot if slot >= 0 else None)]
            case m.Ask(me):
                until = c.c_uint64()
                action = self._lib.lease_ask(gate, me, now, c.byref(until))
                return [m.Decision(("go", "drain", "wait", "sleep")[action], until.value)]
            case m.Drained(me):
                return [m.HandedOver(self._lib.lease_drained(gate, me, now))]
            case m.Launched(me, counted):
                lease = c.c_uint32(counted)
                self._lib.lease_launched(self._tenant(me), c.byref(lease))
                return [m.Counted(lease.value)]
            case m.Emptied(me, counted):
                lease = c.c_uint32(counted)
                self._lib.lease_emptied(self._tenant(me), c.byref(lease))
                return [m.Counted(lease.value)]
            case m.WaitBegins(me):
                self._lib.lease_wait_begins(self._tenant(me))
            case m.WaitEnds(me):
                self._lib.lease_wait_ends(self._tenant(me), now)
            case _:
                assert_never(event)
        return []

    def state(self) -> m.State:
        return self._gate.plain()

    def crowded(self, me: int, now: int) -> bool:
        return bool(self._lib.lease_crowded(c.byref(self._gate), me, now))
