"""Holds pods to their part of each GPU: every second what they hold is compared with what they may hold.

    driver --(what each process holds)--> audit.judge --> end processes, tell why
                                      --> lending.limits --> limits files
    ledgers --(what was refused)--> tell

The rules are in devices/audit.py and devices/lending.py; here they are carried out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from aliquot.backends.local.devices import dynamic_fractions, memory_audit
from aliquot.backends.local.devices.gpu_driver import ProcessMemory, gpu_utilization
from aliquot.backends.local.devices.memory_audit import OverrunPolicy, PodUsage
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.runtime import PodAssignment
from aliquot.gpu import ledger, limits_file
from aliquot.gpu.fractions import Enforcement
from aliquot.gpu.injection import CgroupLimit
from aliquot.gpu.limits_file import Limit
from aliquot.units import GPU, MIB

log = structlog.get_logger()


class Processes(Protocol):
    """Whose processes are whose; the runtime knows."""

    def owners(self, pids: Sequence[int]) -> dict[int, str]:
        """The pod of each process that belongs to one."""

    def program(self, pid: int) -> str:
        """What a process is called."""

    def end_process(self, uid: str, pid: int) -> bool:
        """Kill one process, if it is the pod's; the pod goes on."""

    def move_limit(self, uid: str, limit: CgroupLimit) -> bool:
        """Change what the driver grants a pod that runs; False when it did not."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """What is to be known about a pod."""

    assignment: PodAssignment
    reason: str
    message: str


Tell = Callable[[PodEvent], Awaitable[None]]
Evict = Callable[[PodAssignment], Awaitable[None]]


class MemoryEnforcer:
    def __init__(
        self,
        devices: RealDevices,
        processes: Processes,
        assignments: Callable[[], Sequence[PodAssignment]],
        tell: Tell,
        evict: Evict,
        *,
        policy: OverrunPolicy = OverrunPolicy.KILL_PROCESS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._devices = devices
        self._processes = processes
        self._tickets = assignments
        self._tell = tell
        self._evict = evict
        self._policy = policy
        self._clock = clock
        self._over: dict[memory_audit.Key, int] = {}
        self._refused: dict[str, int] = {}
        self._first_seen: dict[str, float] = {}
        self._unknown: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # the next look may do better; without one nobody is held to anything
                log.exception("the audit of GPU memory failed")
            await asyncio.sleep(memory_audit.SECONDS)

    async def look(self) -> None:
        """Once: compare, act and tell."""
        assignments = {assignment.uid: assignment for assignment in self._tickets() if assignment.shares}
        for uid in assignments:
            self._first_seen.setdefault(uid, self._clock())
        uses = await asyncio.to_thread(self._devices.driver.uses)
        measured = gpu_utilization(await asyncio.to_thread(self._devices.driver.activity))
        if measured or self._devices.busy is not None:  # before the first figure, the driver may have none to give
            self._devices.busy = measured
        owners = await asyncio.to_thread(self._processes.owners, sorted({use.pid for use in uses}))
        self._lend(assignments, uses, owners)
        held = memory_audit.gather(
            uses, owners, {uid: self._limits(assignment) for uid, assignment in assignments.items()}
        )
        self._over, overrun = memory_audit.judge(self._over, held)
        for one in overrun:
            await self._act(assignments[one.uid], one)
        await self._tell_refusals(assignments, held)
        self._forget(assignments)

    # --- limits

    def _limits(self, assignment: PodAssignment) -> dict[str, int]:
        """Bytes by GPU. A whole GPU is limited by itself."""
        told = limits_file.read_limits(self._devices.share_dirs.of(assignment.uid) / "limits")
        found = {}
        for share in assignment.shares:
            uuid = self._devices.uuid(share)
            fallback = self._devices.whole(uuid) if share.milli >= GPU else share.memory_mib * MIB
            found[uuid] = told[uuid].limit if uuid in told else fallback
        return found

    def _lend(
        self, assignments: Mapping[str, PodAssignment], uses: Sequence[ProcessMemory], owners: Mapping[int, str]
    ) -> None:
        """Only where somebody may grow: everywhere else limits stay as they were given."""
        told = {uid: limits_file.read_limits(self._devices.share_dirs.of(uid) / "limits") for uid in assignments}
        now = self._clock()
        for uuid, total in self._devices.totals().items():
            sharing = {uid: limits[uuid] for uid, limits in told.items() if uuid in limits}
            if not any(limit.cap > limit.guaranteed for limit in sharing.values()):
                continue
            claims = [self._claim(uid, uuid, limit, uses, owners, now) for uid, limit in sharing.items()]
            for uid, limit in dynamic_fractions.limits(claims, total).items():
                self._change(uid, uuid, sharing[uid], limit // MIB * MIB)

    def _change(self, uid: str, uuid: str, now: Limit, limit: int) -> None:
        """The driver first, where it keeps limits: what it did not do is not written down, and tried again."""
        if limit == now.limit:
            return
        kept = self._devices.choice.enforcement is Enforcement.CGROUP
        if kept and not self._processes.move_limit(uid, CgroupLimit(uuid, now.guaranteed, limit)):
            return
        if limits_file.write_limit(self._devices.share_dirs.of(uid) / "limits", uuid, limit):
            log.info("GPU memory limit changed", pod=uid, gpu=uuid, mib=limit // MIB)

    def _claim(
        self, uid: str, uuid: str, limit: Limit, uses: Sequence[ProcessMemory], owners: Mapping[int, str], now: float
    ) -> dynamic_fractions.Claim:
        mine = [use for use in uses if use.uuid == uuid and owners.get(use.pid) == uid]
        active = bool(mine) or now - self._first_seen[uid] < dynamic_fractions.STARTING_SECONDS
        return dynamic_fractions.Claim(uid, limit.guaranteed, limit.cap, sum(use.used for use in mine), active)

    # --- acting

    async def _act(self, assignment: PodAssignment, held: PodUsage) -> None:
        said = memory_audit.sentence(held)
        match self._policy:
            case OverrunPolicy.KILL_PROCESS:
                names = {pid: self._processes.program(pid) for pid in memory_audit.victims(held)}
                ended = [pid for pid in names if self._processes.end_process(held.uid, pid)]
                who = ", ".join(f"{names[pid]} ({pid})" for pid in ended)
                if ended:
                    said += f"; its process {who} was killed" if len(ended) == 1 else f"; {who} were killed"
            case OverrunPolicy.EVICT:
                await self._evict(assignment)
                said += "; it was stopped"
            case OverrunPolicy.WARN:
                if self._over[held.uid, held.uuid] > memory_audit.SAMPLES:
                    return  # said already
        log.warning("GPU memory overrun", pod=assignment.name, namespace=assignment.namespace, said=said)
        await self._tell(PodEvent(assignment, "GPUMemoryOverrun", said))

    async def _tell_refusals(self, assignments: Mapping[str, PodAssignment], held: Sequence[PodUsage]) -> None:
        for uid, assignment in assignments.items():
            book = ledger.read(self._devices.share_dirs.of(uid) / "ledger")
            if book.refusals > self._refused.get(uid, 0):
                self._refused[uid] = book.refusals
                mine = next((one for one in held if one.uid == uid), PodUsage(uid, "", 0))
                # Who was refused has often ended since, and its memory is gone: what it had is still in the ledger.
                held_then = max(mine.used, min(book.held, mine.limit))
                used, limit, asked = held_then // MIB, mine.limit // MIB, -(-book.requested // MIB)
                said = f"GPU memory limit {limit} MiB reached (used {used}, asked {asked})"
                await self._tell(PodEvent(assignment, "GPUMemoryLimit", said))
            if book.unknown and uid not in self._unknown:
                self._unknown.add(uid)
                self._devices.outdated = book.unknown
                said = f"this driver's {book.unknown} is unknown to the sharing library; update aliquot"
                await self._tell(PodEvent(assignment, "ShimOutdated", said))

    def _forget(self, assignments: Mapping[str, PodAssignment]) -> None:
        for known in (self._refused, self._first_seen):
            for uid in known.keys() - assignments.keys():
                del known[uid]
        self._unknown &= assignments.keys()
