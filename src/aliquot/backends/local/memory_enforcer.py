"""Enforces the pods' GPU memory limits: every second what they hold is compared with what they may hold.

    driver --(memory of each process)--> memory_audit.find_overruns --> kill processes, record events
                                     --> dynamic_fractions.limits   --> limits files
    ledgers --(refused allocations)--> record events

The rules are in devices/memory_audit.py and devices/dynamic_fractions.py; this module carries them out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from aliquot.backends.local.devices import dynamic_fractions, memory_audit
from aliquot.backends.local.devices.dynamic_fractions import PodMemory
from aliquot.backends.local.devices.gpu_driver import ProcessMemory, gpu_utilization
from aliquot.backends.local.devices.memory_audit import OverrunPolicy, PodUsage
from aliquot.backends.local.devices.real import RealDevices
from aliquot.backends.local.runtime import PodAssignment
from aliquot.gpu import ledger
from aliquot.gpu.fractions import Enforcement
from aliquot.gpu.injection import CgroupLimit
from aliquot.gpu.limits_file import Limit, read_limits, write_limit
from aliquot.units import GPU, MIB

log = structlog.get_logger()


class Processes(Protocol):
    """The processes of pods, as the runtime knows them."""

    def owners(self, pids: Sequence[int]) -> dict[int, str]:
        """The pod uid of each process that belongs to a pod."""

    def program(self, pid: int) -> str:
        """The name of a process."""

    def kill_process(self, uid: str, pid: int) -> bool:
        """Kill one process, if it is the pod's; the pod goes on."""

    def set_cgroup_limit(self, uid: str, limit: CgroupLimit) -> bool:
        """Change what the driver grants a running pod; False when it was not changed."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event to record about a pod."""

    assignment: PodAssignment
    reason: str
    message: str


Record = Callable[[PodEvent], Awaitable[None]]
Evict = Callable[[PodAssignment], Awaitable[None]]


class MemoryEnforcer:
    def __init__(
        self,
        devices: RealDevices,
        processes: Processes,
        assignments: Callable[[], Sequence[PodAssignment]],
        record: Record,
        evict: Evict,
        *,
        policy: OverrunPolicy = OverrunPolicy.KILL_PROCESS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._devices = devices
        self._processes = processes
        self._assignments = assignments
        self._record = record
        self._evict = evict
        self._policy = policy
        self._clock = clock
        self._samples_over: dict[memory_audit.Key, int] = {}
        self._refusals_reported: dict[str, int] = {}
        self._first_seen: dict[str, float] = {}
        self._outdated_reported: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.check()
            except Exception:  # the next check may succeed; without one nothing is enforced
                log.exception("the audit of GPU memory failed")
            await asyncio.sleep(memory_audit.INTERVAL_SECONDS)

    async def check(self) -> None:
        """One cycle: measure, lend memory, act upon overruns, report refusals."""
        assignments = {assignment.uid: assignment for assignment in self._assignments() if assignment.shares}
        for uid in assignments:
            self._first_seen.setdefault(uid, self._clock())
        processes = await asyncio.to_thread(self._devices.driver.process_memory)
        utilization = gpu_utilization(await asyncio.to_thread(self._devices.driver.process_utilization))
        # Before the first figure, an empty answer may only mean that the driver has no samples.
        if utilization or self._devices.utilization is not None:
            self._devices.utilization = utilization
        owners = await asyncio.to_thread(self._processes.owners, sorted({process.pid for process in processes}))
        self._lend(assignments, processes, owners)
        limits = {uid: self._limits(assignment) for uid, assignment in assignments.items()}
        usages = memory_audit.usage_by_pod(processes, owners, limits)
        self._samples_over, overruns = memory_audit.find_overruns(self._samples_over, usages)
        for usage in overruns:
            await self._act(assignments[usage.uid], usage)
        await self._report_refusals(assignments, usages)
        self._forget_ended(assignments)

    # --- limits

    def _limits(self, assignment: PodAssignment) -> dict[str, int]:
        """Bytes by GPU uuid. The limit of a whole GPU is its memory."""
        in_file = read_limits(self._devices.share_dirs.limits_file(assignment.uid))
        limits = {}
        for share in assignment.shares:
            uuid = self._devices.uuid(share)
            fallback = self._devices.total_bytes(uuid) if share.milli >= GPU else share.memory_mib * MIB
            limits[uuid] = in_file[uuid].limit if uuid in in_file else fallback
        return limits

    def _lend(
        self, assignments: Mapping[str, PodAssignment], processes: Sequence[ProcessMemory], owners: Mapping[int, str]
    ) -> None:
        """Move the limits on GPUs with a pod that may grow; on all others they stay as they were given."""
        limits_by_pod = {uid: read_limits(self._devices.share_dirs.limits_file(uid)) for uid in assignments}
        now = self._clock()
        for uuid, total in self._devices.shareable_bytes().items():
            on_gpu = {uid: limits[uuid] for uid, limits in limits_by_pod.items() if uuid in limits}
            if not any(limit.cap > limit.guaranteed for limit in on_gpu.values()):
                continue
            pods = [self._pod_memory(uid, uuid, limit, processes, owners, now) for uid, limit in on_gpu.items()]
            for uid, limit in dynamic_fractions.limits(pods, total).items():
                self._change_limit(uid, uuid, on_gpu[uid], limit // MIB * MIB)

    def _change_limit(self, uid: str, uuid: str, current: Limit, limit: int) -> None:
        """Through the driver first, where it enforces: a limit that it did not set is not written, and tried again."""
        if limit == current.limit:
            return
        by_driver = self._devices.choice.enforcement is Enforcement.CGROUP
        if by_driver and not self._processes.set_cgroup_limit(uid, CgroupLimit(uuid, current.guaranteed, limit)):
            return
        if write_limit(self._devices.share_dirs.limits_file(uid), uuid, limit):
            log.info("GPU memory limit changed", pod=uid, gpu=uuid, mib=limit // MIB)

    def _pod_memory(
        self,
        uid: str,
        uuid: str,
        limit: Limit,
        processes: Sequence[ProcessMemory],
        owners: Mapping[int, str],
        now: float,
    ) -> PodMemory:
        own = [process for process in processes if process.uuid == uuid and owners.get(process.pid) == uid]
        active = bool(own) or now - self._first_seen[uid] < dynamic_fractions.STARTING_SECONDS
        return PodMemory(uid, limit.guaranteed, limit.cap, sum(process.used for process in own), active)

    # --- overruns and refusals

    async def _act(self, assignment: PodAssignment, usage: PodUsage) -> None:
        message = memory_audit.overrun_message(usage)
        match self._policy:
            case OverrunPolicy.KILL_PROCESS:
                names = {pid: self._processes.program(pid) for pid in memory_audit.processes_to_kill(usage)}
                killed = [pid for pid in names if self._processes.kill_process(usage.uid, pid)]
                listed = ", ".join(f"{names[pid]} ({pid})" for pid in killed)
                if killed:
                    message += f"; its process {listed} was killed" if len(killed) == 1 else f"; {listed} were killed"
            case OverrunPolicy.EVICT:
                await self._evict(assignment)
                message += "; it was stopped"
            case OverrunPolicy.WARN:
                if self._samples_over[usage.uid, usage.uuid] > memory_audit.SAMPLES:
                    return  # reported already
        log.warning("GPU memory overrun", pod=assignment.name, namespace=assignment.namespace, message=message)
        await self._record(PodEvent(assignment, "GPUMemoryOverrun", message))

    async def _report_refusals(self, assignments: Mapping[str, PodAssignment], usages: Sequence[PodUsage]) -> None:
        for uid, assignment in assignments.items():
            counts = ledger.read(self._devices.share_dirs.ledger_file(uid))
            if counts.refusals > self._refusals_reported.get(uid, 0):
                self._refusals_reported[uid] = counts.refusals
                usage = next((usage for usage in usages if usage.uid == uid), PodUsage(uid, "", 0))
                # The refused process has often ended since and freed its memory; the ledger still has what it held.
                used = max(usage.used, min(counts.held, usage.limit)) // MIB
                limit, requested = usage.limit // MIB, -(-counts.requested // MIB)
                message = f"GPU memory limit {limit} MiB reached (used {used}, asked {requested})"
                await self._record(PodEvent(assignment, "GPUMemoryLimit", message))
            if counts.unknown and uid not in self._outdated_reported:
                self._outdated_reported.add(uid)
                self._devices.unknown_entry_point = counts.unknown
                message = f"this driver's {counts.unknown} is unknown to the sharing library; update aliquot"
                await self._record(PodEvent(assignment, "ShimOutdated", message))

    def _forget_ended(self, assignments: Mapping[str, PodAssignment]) -> None:
        for by_uid in (self._refusals_reported, self._first_seen):
            for uid in by_uid.keys() - assignments.keys():
                del by_uid[uid]
        self._outdated_reported &= assignments.keys()
