"""The rules by which tenants take turns on a GPU, as one pure function: an event goes in, the new state and what to do
come out. `native/gpushare/lease.c` follows it line by line, and a test drives both with the same events.

Times are nanoseconds of one clock. A tenant's virtual time is what it was billed, divided by its weight: who has the
least goes next. All processes of a tenant share its turn; `counted` on an event is the process's own note of the lease
under which it was last counted among those with work on the card.
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
    name: str = ""  # empty: nobody has this place
    weight: int = 0  # milli-GPU
    strict: bool = False
    vtime: int = 0
    held: int = 0
    active: int = 0  # last launch or end of a wait
    period: int = 0  # strict: when the current one began, and what was used of its budget
    spent: int = 0
    asked: int = 0  # last time it asked in vain; 0: nobody of it waits
    handing: int = 0  # since when it wants to hand over; 0: it does not
    waits_for_work: int = 0  # threads in a synchronise call
    leases: int = 0  # given so far
    queued: int = 0  # processes that launched under this lease and have not waited for it since

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

    def turned(self, now: int) -> Tenant:
        """Strict: into the period of now; what was used beyond a budget is owed in the next."""
        periods = (now - self.period) // PERIOD
        if periods < 1:
            return self
        return replace(self, period=self.period + periods * PERIOD, spent=max(0, self.spent - self.budget * periods))


@dataclass(frozen=True)
class State:
    tenants: tuple[Tenant, ...] = (Tenant(),) * TENANTS
    holder: int | None = None
    start: int = 0  # of the holder's lease; billing begins here
    end: int = 0

    def put(self, who: int, tenant: Tenant) -> State:
        return replace(self, tenants=(*self.tenants[:who], tenant, *self.tenants[who + 1 :]))

    def contended(self, me: int, now: int) -> bool:
        return any(t.waits(now) for i, t in enumerate(self.tenants) if i != me)

    def crowded(self, me: int, now: int) -> bool:
        """Rule 5: somebody else is or was just here, so queues are kept short."""
        return any(t.waits(now) or t.active + CROWDED > now for i, t in enumerate(self.tenants) if i != me)

    def heir(self, me: int | None, now: int) -> int | None:
        """The waiting tenant, or `me`, with the least virtual time; `me` where they are equal."""
        waiting = [i for i, t in enumerate(self.tenants) if i != me and t.waits(now)]
        candidates = waiting if me is None else [me, *waiting]
        return min(candidates, key=lambda i: self.tenants[i].vtime, default=None)


# --- what happens, and what to do about it


@dataclass(frozen=True)
class Join:
    """A process of a tenant joins."""

    name: str
    weight: int
    strict: bool = False


@dataclass(frozen=True)
class Ask:
    """A process wants to launch and its tenant has no lease that still runs."""

    me: int


@dataclass(frozen=True)
class Drained:
    """A process that was asked to drain has done so."""

    me: int


@dataclass(frozen=True)
class Launched:
    me: int
    counted: int


@dataclass(frozen=True)
class Emptied:
    """A process waited for all it had launched."""

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
class Place:
    """The slot of a tenant that joined; None: the gate is full."""

    who: int | None


@dataclass(frozen=True)
class Turn:
    """The answer to `Ask`. `until`: for how long to sleep."""

    turn: Literal["go", "drain", "wait", "sleep"]
    until: int = 0


@dataclass(frozen=True)
class Passed:
    """Whether the lease was passed on, or processes of the tenant still have work on the card."""

    done: bool


@dataclass(frozen=True)
class Counted:
    """The lease under which the process is counted now; 0: none."""

    lease: int


Action = Place | Turn | Passed | Counted


def step(state: State, event: Event, now: int) -> tuple[State, list[Action]]:
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
            return state.put(me, replace(t, queued=t.queued + 1)), [Counted(t.leases)]
        case Emptied(me, counted):
            t = state.tenants[me]
            if counted and counted == t.leases:
                state = state.put(me, replace(t, queued=max(0, t.queued - 1)))
            return state, [Counted(0)]
        case WaitBegins(me):
            t = state.tenants[me]
            return state.put(me, replace(t, waits_for_work=t.waits_for_work + 1)), []
        case WaitEnds(me):
            t = state.tenants[me]
            return state.put(me, replace(t, active=now, waits_for_work=max(0, t.waits_for_work - 1))), []


def _join(state: State, name: str, weight: int, strict: bool, now: int) -> tuple[State, list[Action]]:
    found = next((i for i, t in enumerate(state.tenants) if t.name == name), None)
    if found is None:
        others = [i for i in range(TENANTS) if i != state.holder]
        found = min(others, key=lambda i: state.tenants[i].active)  # a place nobody had, else whoever was away longest
        if state.tenants[found].is_active(now):
            return state, [Place(None)]
        state = _arrived(state.put(found, Tenant(name, weight, period=now)), found, now)
    return state.put(found, replace(state.tenants[found], weight=max(1, weight), strict=strict)), [Place(found)]


def _ask(state: State, me: int, now: int) -> tuple[State, list[Action]]:
    state, turn = _answer(_arrived(_revoked(state, now), me, now), me, now)
    asked = now if turn.turn == "wait" else 0
    return state.put(me, replace(state.tenants[me], asked=asked)), [turn]


def _answer(state: State, me: int, now: int) -> tuple[State, Turn]:
    if state.tenants[me].strict:
        t = state.tenants[me].turned(now)
        state = state.put(me, t)
        if state.holder != me and t.spent >= t.budget:
            return state, Turn("sleep", t.period + PERIOD)
    if state.holder is None and state.heir(me, now) == me:
        state = _given(state, me, now)
    if state.holder != me:
        return state, Turn("wait")
    t = replace(state.tenants[me], active=now)
    state = state.put(me, t)
    if now < state.end:
        return state, Turn("go")  # rule 1
    if t.strict or state.contended(me, now):
        return state, Turn("drain")
    state = state.put(me, replace(t, handing=0))
    return replace(state, start=now, end=now + QUANTUM), Turn("go")  # rule 2: nobody waits, so it costs nothing


def _drained(state: State, me: int, now: int) -> tuple[State, list[Action]]:
    """Rule 2: bill the real time and pass the lease on; but the last process of the tenant to drain does (rule 6)."""
    if state.holder != me:
        return state, [Passed(True)]
    t = state.tenants[me]
    t = replace(t, active=now, handing=t.handing or now)
    if t.queued and now < t.handing + (STUCK if t.waits_for_work else HAND_OVER):
        return state.put(me, t), [Passed(False)]
    t = replace(t.billed(state.start, now).turned(now), handing=0)
    state = replace(state.put(me, t), start=now)
    over = t.strict and t.spent >= t.budget
    heir = state.heir(None if over else me, now)
    state = replace(state, holder=None) if heir is None else _given(state, heir, now)
    return state, [Passed(True)]


def _arrived(state: State, me: int, now: int) -> State:
    """Rule 3: a tenant that was away starts level with the least of the active ones, without credit or debt."""
    t = state.tenants[me]
    if t.is_active(now) and t.active:
        return state
    here = [o.vtime for i, o in enumerate(state.tenants) if i != me and o.is_active(now)]
    return state.put(me, replace(t, vtime=min(here, default=t.vtime), active=now))


def _revoked(state: State, now: int) -> State:
    """Rule 4: a holder that does nothing, or is gone, loses the lease."""
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
    return replace(state.put(state.holder, t), holder=None)


def _given(state: State, who: int, now: int) -> State:
    t = state.tenants[who]
    quantum = QUANTUM
    if t.strict:
        t = t.turned(now)
        quantum = min(quantum, max(0, t.budget - t.spent))
    t = replace(t, active=now, handing=0, queued=0, leases=t.leases + 1)
    return replace(state.put(who, t), holder=who, start=now, end=now + quantum)
