"""The rules that lease a GPU to tenants, as a pure function: `step` takes an event, returns the new state and results.

`native/gpushare/lease.c` implements the same rules line by line; a test drives both with the same events.

Times are nanoseconds of one clock. A tenant's virtual time is its billed time divided by its weight; the tenant with
the least virtual time gets the next lease. All processes of a tenant share its lease. `counted` in an event is the
lease under which the process was last counted as having work on the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

MS = 1_000_000
QUANTUM, IDLE, INACTIVE, STUCK, PERIOD, HAND_OVER = 10 * MS, 2 * MS, 50 * MS, 200 * MS, 100 * MS, 5 * MS
CROWDED = 1000 * MS
TENANTS = 32


@dataclass(frozen=True)
class Tenant:
    name: str = ""  # empty: the slot is free
    weight: int = 0  # milli-GPU
    strict: bool = False
    vtime: int = 0
    held: int = 0
    active: int = 0  # last launch or end of a wait
    period: int = 0  # strict: start of the current period, and the budget spent in it
    spent: int = 0
    asked: int = 0  # when it last had to wait; 0: none of its processes waits
    handing: int = 0  # since when it is handing the lease over; 0: it is not
    waits_for_work: int = 0  # threads in a synchronize call
    leases: int = 0  # number of leases granted
    queued: int = 0  # processes that launched under this lease and have not synchronized since

    def waits(self, now: int) -> bool:
        return self.asked > 0 and now < self.asked + STUCK

    def is_active(self, now: int) -> bool:
        return bool(self.name) and (self.waits(now) or self.active + INACTIVE > now)

    @property
    def budget(self) -> int:
        return PERIOD * self.weight // 1000

    def billed(self, start: int, end: int) -> Tenant:
        used = max(0, end - start)
        return replace(
            self, held=self.held + used, spent=self.spent + used, vtime=self.vtime + used * 1000 // self.weight
        )

    def in_current_period(self, now: int) -> Tenant:
        """Strict: starts the period that contains `now`; time used beyond the budget counts against the next period."""
        periods = (now - self.period) // PERIOD
        if periods < 1:
            return self
        return replace(self, period=self.period + periods * PERIOD, spent=max(0, self.spent - self.budget * periods))


@dataclass(frozen=True)
class State:
    tenants: tuple[Tenant, ...] = (Tenant(),) * TENANTS
    holder: int | None = None
    start: int = 0  # of the holder's lease; billed from here
    end: int = 0

    def with_tenant(self, index: int, tenant: Tenant) -> State:
        return replace(self, tenants=(*self.tenants[:index], tenant, *self.tenants[index + 1 :]))

    def others_wait(self, me: int, now: int) -> bool:
        return any(t.waits(now) for i, t in enumerate(self.tenants) if i != me)

    def crowded(self, me: int, now: int) -> bool:
        """Rule 5: another tenant is active or was recently, so queues are kept short."""
        return any(t.waits(now) or t.active + CROWDED > now for i, t in enumerate(self.tenants) if i != me)

    def next_holder(self, me: int | None, now: int) -> int | None:
        """The tenant with the least virtual time among those that wait and `me`; `me` when equal."""
        waiting = [i for i, t in enumerate(self.tenants) if i != me and t.waits(now)]
        candidates = waiting if me is None else [me, *waiting]
        return min(candidates, key=lambda i: self.tenants[i].vtime, default=None)


# --- events and results


@dataclass(frozen=True)
class Join:
    """A process of a tenant joins."""

    name: str
    weight: int
    strict: bool = False


@dataclass(frozen=True)
class Ask:
    """A process wants to launch and its tenant has no valid lease."""

    me: int


@dataclass(frozen=True)
class Drained:
    """A process has drained its queue as requested."""

    me: int


@dataclass(frozen=True)
class Launched:
    me: int
    counted: int


@dataclass(frozen=True)
class Emptied:
    """A process has synchronized: everything it launched has run."""

    me: int
    counted: int


@dataclass(frozen=True)
class WaitBegins:
    me: int


@dataclass(frozen=True)
class WaitEnds:
    me: int


Event = Join | Ask | Drained | Launched | Emptied | WaitBegins | WaitEnds


@dataclass(frozen=True)
class Joined:
    """The slot of a tenant that joined; None: the gate is full."""

    slot: int | None


@dataclass(frozen=True)
class Decision:
    """The answer to `Ask`. `until`: when a sleep ends."""

    action: Literal["go", "drain", "wait", "sleep"]
    until: int = 0


@dataclass(frozen=True)
class HandedOver:
    """The answer to `Drained`: False while other processes of the tenant have work on the GPU."""

    done: bool


@dataclass(frozen=True)
class Counted:
    """The lease under which the process is counted now; 0: none."""

    lease: int


Result = Joined | Decision | HandedOver | Counted


def step(state: State, event: Event, now: int) -> tuple[State, list[Result]]:
    match event:
        case Join(name, weight, strict):
            return _join(state, name, weight, strict, now)
        case Ask(me):
            return _ask(state, me, now)
        case Drained(me):
            return _drained(state, me, now)
        case Launched(me, counted):
            t = state.tenants[me]
            if counted == t.leases:
                return state, [Counted(counted)]
            return state.with_tenant(me, replace(t, queued=t.queued + 1)), [Counted(t.leases)]
        case Emptied(me, counted):
            t = state.tenants[me]
            if counted and counted == t.leases:
                state = state.with_tenant(me, replace(t, queued=max(0, t.queued - 1)))
            return state, [Counted(0)]
        case WaitBegins(me):
            t = state.tenants[me]
            return state.with_tenant(me, replace(t, waits_for_work=t.waits_for_work + 1)), []
        case WaitEnds(me):
            t = state.tenants[me]
            return state.with_tenant(me, replace(t, active=now, waits_for_work=max(0, t.waits_for_work - 1))), []


def _join(state: State, name: str, weight: int, strict: bool, now: int) -> tuple[State, list[Result]]:
    slot = next((i for i, t in enumerate(state.tenants) if t.name == name), None)
    if slot is None:
        others = [i for i in range(TENANTS) if i != state.holder]
        slot = min(others, key=lambda i: state.tenants[i].active)  # a free slot, or the longest inactive
        if state.tenants[slot].is_active(now):
            return state, [Joined(None)]
        state = _activated(state.with_tenant(slot, Tenant(name, weight, period=now)), slot, now)
    return state.with_tenant(slot, replace(state.tenants[slot], weight=max(1, weight), strict=strict)), [Joined(slot)]


def _ask(state: State, me: int, now: int) -> tuple[State, list[Result]]:
    state, decision = _answer(_activated(_revoke_if_idle(state, now), me, now), me, now)
    asked = now if decision.action == "wait" else 0
    return state.with_tenant(me, replace(state.tenants[me], asked=asked)), [decision]


def _answer(state: State, me: int, now: int) -> tuple[State, Decision]:
    if state.tenants[me].strict:
        t = state.tenants[me].in_current_period(now)
        state = state.with_tenant(me, t)
        if state.holder != me and t.spent >= t.budget:
            return state, Decision("sleep", t.period + PERIOD)
    if state.holder is None and state.next_holder(me, now) == me:
        state = _granted(state, me, now)
    if state.holder != me:
        return state, Decision("wait")
    t = replace(state.tenants[me], active=now)
    state = state.with_tenant(me, t)
    if now < state.end:
        return state, Decision("go")  # rule 1
    if t.strict or state.others_wait(me, now):
        return state, Decision("drain")
    state = state.with_tenant(me, replace(t, handing=0))
    return replace(state, start=now, end=now + QUANTUM), Decision(
        "go"
    )  # rule 2: no other tenant waits, so the time is not billed


def _drained(state: State, me: int, now: int) -> tuple[State, list[Result]]:
    """Rule 2: bills the time used and hands the lease over. Rule 6: the last process of the tenant to drain does it."""
    if state.holder != me:
        return state, [HandedOver(True)]
    t = state.tenants[me]
    t = replace(t, active=now, handing=t.handing or now)
    if t.queued and now < t.handing + (STUCK if t.waits_for_work else HAND_OVER):
        return state.with_tenant(me, t), [HandedOver(False)]
    t = replace(t.billed(state.start, now).in_current_period(now), handing=0)
    state = replace(state.with_tenant(me, t), start=now)
    over = t.strict and t.spent >= t.budget
    next_holder = state.next_holder(None if over else me, now)
    state = replace(state, holder=None) if next_holder is None else _granted(state, next_holder, now)
    return state, [HandedOver(True)]


def _activated(state: State, me: int, now: int) -> State:
    """Rule 3: an inactive tenant starts with the least virtual time of the active ones, without credit or debt."""
    t = state.tenants[me]
    if t.is_active(now) and t.active:
        return state
    active = [o.vtime for i, o in enumerate(state.tenants) if i != me and o.is_active(now)]
    return state.with_tenant(me, replace(t, vtime=min(active, default=t.vtime), active=now))


def _revoke_if_idle(state: State, now: int) -> State:
    """Rule 4: a holder that is idle, dead or hung loses the lease."""
    if state.holder is None:
        return state
    t = state.tenants[state.holder]
    last = max(t.active, state.start)
    idle = now - last > IDLE and not t.waits_for_work
    stuck = now - state.end > STUCK and now - last > STUCK
    if not idle and not stuck:
        return state
    t = t.billed(state.start, last if idle else now)
    t = replace(t, handing=0, waits_for_work=0 if stuck else t.waits_for_work)
    return replace(state.with_tenant(state.holder, t), holder=None)


def _granted(state: State, index: int, now: int) -> State:
    t = state.tenants[index]
    quantum = QUANTUM
    if t.strict:
        t = t.in_current_period(now)
        quantum = min(quantum, max(0, t.budget - t.spent))
    t = replace(t, active=now, handing=0, queued=0, leases=t.leases + 1)
    return replace(state.with_tenant(index, t), holder=index, start=now, end=now + quantum)
