"""Pods as processes of this machine, without a container engine.

Started as root, each pod has its own root, processes, host name and, with its project, its own uid (sandbox.py).
Started by a user, it is that user's process in its own session, and nothing more is kept apart.

The truth about a pod is on the disk and in the kernel, never only here: who runs is known by pid *and* start time,
how it ended by a file its supervisor wrote, what it printed by its log. So this object can be thrown away at any
moment, and the next one carries on. Nothing limits how much a pod writes into its folder, as on any machine without
quotas; a full disk stops writes, and breaks nobody's stored data.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from aliquot.api import Json, Pod
from aliquot.backends.local.devices.gpu_driver import CgroupLimiter
from aliquot.backends.local.runtime import CannotStart, Ended, Launch, RecoveredPod, SignalName, Started
from aliquot.backends.local.runtimes import cgroups, launch_spec, log_file, ports, preemption_files, syscalls
from aliquot.backends.local.runtimes.cgroups import Cgroups
from aliquot.backends.local.runtimes.checkpoints import Checkpoints
from aliquot.backends.local.runtimes.exec_process import ExecProcess, start_exec
from aliquot.backends.local.runtimes.forkserver import Forkserver, LauncherFailed, LauncherGone
from aliquot.backends.local.runtimes.log_file import LogTrimmer
from aliquot.backends.local.runtimes.pod_cgroups import PodCgroups
from aliquot.backends.local.runtimes.pod_folder import PodFolder, Process, folders
from aliquot.backends.local.runtimes.ports import PortConnection, connect_port
from aliquot.backends.local.runtimes.uids import ProjectUids
from aliquot.errors import Conflict
from aliquot.gpu.injection import LIBRARY, CgroupLimit
from aliquot.streams import Log, LogOptions, TerminalSize, why_not_running

log = structlog.get_logger()
_AT_ONCE = 4  # launchers side by side: each is mostly CPU
_LAUNCH_SECONDS = 30.0
# The pause before each further try, when a launcher or its starter was killed: 10 tries in about 4 seconds.
_RETRY_SECONDS = tuple(min(0.02 * 2**n, 1.0) for n in range(9))
_LOOK_AGAIN_SECONDS = 0.02
_MARK_SECONDS = 1.0
_HASTY_SECONDS = 0.1  # while a log grows fast
_COLLECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LogLimits:
    """At most `pieces` of this many bytes are kept of a log."""

    piece: int = 10 << 20
    pieces: int = 5


class ProcessRuntime:
    """See aliquot.backends.local.runtime.Runtime and aliquot.streams.Streams. `run` must run beside it."""

    def __init__(
        self,
        data: Path,
        *,
        isolated: bool | None = None,
        host_paths: Sequence[str] = (),
        log_limits: LogLimits = LogLimits(),  # noqa: B008  # frozen
        control_groups: Cgroups | None = None,
        keeper: CgroupLimiter | None = None,
    ) -> None:
        """`keeper` limits the GPU memory of control groups, where the driver can."""
        self._data = data.resolve()
        self._root = self._data / "pods"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._allowed = tuple(host_paths)
        self._limits = log_limits
        self._isolated = can_isolate() if isolated is None else isolated
        self._cgroups = control_groups or Cgroups()
        self._groups = PodCgroups(self._cgroups, keeper)
        self._uids = ProjectUids(self._data / "uids.json")
        self._checkpoints = Checkpoints(self._data / "checkpoints")
        self._soft_files = _raise_open_files()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._starter = Forkserver([*_LAUNCHER, "serve"], _LAUNCHER_ENV)
        self._keepers: dict[str, LogTrimmer] = {}
        self._listeners: dict[str, preemption_files.SaveWatcher] = {}
        self._watched: dict[str, int] = {}  # uid -> pidfd of its supervisor
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_end: Callable[[str, Ended], None] = lambda uid, ended: None
        self.on_saved: Callable[[str, float], None] = lambda uid, at: None
        self.has_ended: Callable[[str], bool] = lambda uid: False  # not known, so whoever follows a log waits
        self.isolation = self._sentence()

    def _sentence(self) -> str:
        if self._isolated:
            return (
                "each project's jobs run under a uid of their own, in namespaces of their own, without sight of the "
                f"data folder or of other projects; {self._cgroups.summary}"
            )
        why = "the platform was started by a user" if os.geteuid() else "this machine does not let us make namespaces"
        return (
            f"jobs are not kept apart from each other or from the platform's data, because {why}; "
            f"{self._cgroups.summary}"
        )

    @property
    def group_version(self) -> int:
        """Of the control groups that every pod can have, for a driver that limits them; 0: not every pod can."""
        return 2 if self._isolated and self._cgroups.leaf("any") else 0

    # --- life of a pod

    def recover_pods(self) -> list[RecoveredPod]:
        found = []
        for folder in folders(self._root):
            assignment = folder.assignment()
            if assignment is None:
                folder.remove()  # orders were never written, so nothing was ever started
                continue
            process = folder.process()
            found.append(RecoveredPod(assignment, process.attempt if process else 0))
        return found

    async def resume(self, uid: str, attempt: int) -> Started | Ended | None:
        folder = self._folder(uid)
        process = folder.process()
        if process is None or process.attempt < attempt:
            return None
        if self._watch(folder, process):
            return Started(process.attempt, process.pid, process.started)
        await self._clear(folder, process)
        return self._ended(folder, process)

    async def start(self, launch: Launch) -> Started | Ended:
        folder = self._folder(launch.assignment.uid)
        if found := await self.resume(launch.assignment.uid, launch.attempt):
            return found
        try:
            await asyncio.to_thread(self._write_orders, launch, folder)
        except OSError as exc:
            raise CannotStart("CreateContainerError", f"cannot make its folder: {exc.strerror or exc}") from exc
        await asyncio.to_thread(self._groups.set_gpu_limits, folder)
        for _ in range(int(_LAUNCH_SECONDS / _LOOK_AGAIN_SECONDS)):
            answer = await self._launch(folder)
            if "error" in answer:
                raise CannotStart(answer.get("reason") or _reason(answer["code"]), answer["error"], answer["code"])
            if found := await self.resume(launch.assignment.uid, launch.attempt):
                return found
            # A launcher of the platform before us is half way: it finishes, or its end frees the lock.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        raise CannotStart("CreateContainerError", "another launcher holds the pod and does not finish")

    def signal(self, uid: str, name: SignalName) -> None:
        process = self._folder(uid).process()
        if process is None or not process.supervised:
            return
        if name == "KILL":
            self._kill(uid, process)
        else:
            self._spawn(self._terminate(process))

    def write_preemption_notice(self, uid: str, text: str) -> None:
        try:
            preemption_files.write_notice(self._folder(uid).preemption_dir, text)
        except (
            OSError
        ) as exc:  # a full disk, say, or a pod from before there were notices: it gets its TERM all the same
            log.warning("notice not written", pod=uid, error=str(exc))

    async def remove(self, uid: str) -> None:
        folder = self._folder(uid)
        process = folder.process()
        if process is not None:
            while process.supervised:
                self._kill(uid, process)
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            await self._clear(folder, process)
        self._forget(uid)
        # Before its folder, which alone knows of them.
        await asyncio.to_thread(self._groups.remove, folder)
        await asyncio.to_thread(folder.remove)

    def checkpointed_workloads(self) -> list[tuple[str, str]]:
        return self._checkpoints.all()

    async def remove_checkpoints(self, namespace: str, workload: str) -> None:
        await asyncio.to_thread(self._checkpoints.remove, namespace, workload)

    async def run(self) -> None:
        """Look after logs, hear of saved work and collect ends, until cancelled. Pods go on without us."""
        self._starter.open()
        try:
            while True:
                hasty = [keeper.update() for keeper in list(self._keepers.values())]
                self._listen(time.monotonic())
                await asyncio.sleep(_HASTY_SECONDS if any(hasty) else _MARK_SECONDS)
        finally:
            for uid in list(self._watched):
                self._unwatch(uid)
            for task in self._tasks:
                task.cancel()
            self._starter.close()

    # --- starting

    def _folder(self, uid: str) -> PodFolder:
        return PodFolder(self._root / os.path.basename(uid))

    def _write_orders(self, launch: Launch, folder: PodFolder) -> None:
        assignment = launch.assignment
        owner = self._uids.uid(assignment.namespace) if self._isolated else None
        folder.prepare(
            owner, launch_spec.bashrc(launch, folder, self._isolated), launch_spec.host_name(assignment.name)
        )
        injected = launch_spec.inject(launch.injection, folder)
        lasting = (
            self._checkpoints.folder(assignment.namespace, assignment.workload, owner) if assignment.workload else None
        )
        if owner is not None:
            special = launch_spec.isolated_spec(launch, folder, self._data, owner, self._allowed, lasting)
        else:
            special = launch_spec.plain_spec(launch, folder, self._data, self._allowed, lasting)
        common: Json = {
            "folder": str(folder.path),
            "attempt": launch.attempt,
            "hostname": launch_spec.host_name(assignment.name),
            "argv": list(launch.argv),
            "devices": list(launch.injection.devices),
            "injected": injected,
            "loads": LIBRARY if launch.injection.requires_library else "",
            "hostIPC": launch.host_ipc,
            "files": self._soft_files,
            "cgroups": self._groups.spec(launch),
            "gpuLimits": [asdict(limit) for limit in launch.injection.cgroup_limits],
        }
        folder.write_spec(common | special, assignment)

    async def _launch(self, folder: PodFolder) -> Json:
        """What the launcher answers. If a launcher was killed, another one continues from the state in the folder."""
        pauses = iter(_RETRY_SECONDS)
        while True:
            try:
                async with self._slots:
                    return await self._starter.start(folder.spec_file, _LAUNCH_SECONDS)
            except LauncherFailed as exc:
                pause = next(pauses, None) if isinstance(exc, LauncherGone) else None
                if pause is None:
                    raise CannotStart("CreateContainerError", "the launcher did not finish") from exc
                log.warning("launcher ended without an answer; starting another", pod=folder.uid)
            await asyncio.sleep(pause)

    # --- ending

    def _watch(self, folder: PodFolder, process: Process) -> bool:
        """Hear of its end, once. False when it has ended already."""
        if folder.uid in self._watched:
            return True
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:
            return False
        if not process.supervised:  # looked at after opening: the number cannot change hands any more
            os.close(handle)
            return False
        self._watched[folder.uid] = handle
        self._keepers[folder.uid] = LogTrimmer(folder.log, self._limits.piece, self._limits.pieces)
        self._listeners[folder.uid] = preemption_files.SaveWatcher(folder.preemption_dir)
        asyncio.get_running_loop().add_reader(handle, self._supervisor_ended, folder, process)
        return True

    def _unwatch(self, uid: str) -> None:
        handle = self._watched.pop(uid, None)
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)

    def _supervisor_ended(self, folder: PodFolder, process: Process) -> None:
        self._unwatch(folder.uid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # ours to bury only when we are process 1 of a container
        self._spawn(self._finish(folder, process))

    async def _finish(self, folder: PodFolder, process: Process) -> None:
        await self._clear(folder, process)
        self._forget(folder.uid)
        self.on_end(folder.uid, self._ended(folder, process))

    async def _clear(self, folder: PodFolder, process: Process) -> None:
        """End what the command left behind, and wait until all it printed is in the log."""
        deadline = time.monotonic() + _COLLECT_SECONDS
        isolated = (folder.spec() or {}).get("isolated", False)
        while time.monotonic() < deadline:
            left = [] if isolated else self._marked(folder.uid)
            for pid in left:
                _send(pid, signal.SIGKILL)
            if not left and process.collected:
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS / 4)

    def _listen(self, now: float) -> None:
        for uid, listener in list(self._listeners.items()):
            if (saved := listener.poll(now)) is not None:
                self.on_saved(uid, saved)

    def _forget(self, uid: str) -> None:
        self._unwatch(uid)
        self._listeners.pop(uid, None)
        keeper = self._keepers.pop(uid, None)
        if keeper is not None:
            keeper.update()

    def _ended(self, folder: PodFolder, process: Process) -> Ended:
        status = folder.exit_status(process.attempt)
        if status is not None:
            code, finished, message = *status, ""
        else:
            code, finished, message = 137, time.time(), "killed, or the machine was restarted"
        reason = "OOMKilled" if code == 137 and cgroups.killed_for_memory(folder.cgroups()) else ""
        return Ended(
            process.attempt,
            code,
            process.started,
            finished,
            reason,
            message,
            preemption_files.saved_at(folder.preemption_dir),
        )

    def _marked(self, uid: str) -> list[int]:
        return syscalls.pids_with_variable(f"{launch_spec.POD_VARIABLE}={uid}".encode())

    def _kill(self, uid: str, process: Process) -> None:
        """As root this is process 1 of the pod: the kernel ends all others with it."""
        _send(process.pid, signal.SIGKILL)
        if not (self._folder(uid).spec() or {}).get("isolated", False):
            for pid in self._marked(uid):
                _send(pid, signal.SIGKILL)

    async def _terminate(self, process: Process) -> None:
        """To the command itself, which is the supervisor's oldest child.

        For a moment it is not there yet, and for another it is still a copy of the supervisor, whose shell would
        swallow the signal: it has the same words on its command line then.
        """
        while process.supervised:
            found = syscalls.children(process.pid)
            if found and syscalls.command_line(found[0]) != syscalls.command_line(process.pid):
                _send(found[0], signal.SIGTERM)
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- whose is a process

    def owners(self, pids: Sequence[int]) -> dict[int, str]:
        """The pod of each process that belongs to one; also of one that has gone into namespaces of its own."""
        inits, spaces = self._running()
        found = {}
        for pid in pids:
            if uid := _owner(pid, inits, spaces):
                found[pid] = uid
        return found

    def _running(self) -> tuple[dict[int, str], dict[str, str]]:
        """Pods by their supervisor, and those that have one by their PID namespace."""
        inits, spaces = {}, {}
        for uid in self._watched:
            folder = self._folder(uid)
            process = folder.process()
            if process is not None and process.supervised:
                inits[process.pid] = uid
                if (folder.spec() or {}).get("isolated", False):
                    spaces[syscalls.pid_namespace(process.pid)] = uid
        return inits, spaces

    def program(self, pid: int) -> str:
        """What a process calls itself."""
        return syscalls.program(pid)

    def kill_process(self, uid: str, pid: int) -> bool:
        """Kill one process of a pod; False when it is not the pod's, or no more."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            # Looked at after opening: the number cannot change hands any more.
            if self.owners([pid]).get(pid) != uid:
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)

    def set_cgroup_limit(self, uid: str, limit: CgroupLimit) -> bool:
        """Change what the driver grants a pod that runs; False when it did not, and the log says why."""
        return self._groups.change_gpu_limit(self._folder(uid), limit)

    # --- looking inside

    async def logs(self, pod: Pod, options: LogOptions) -> AsyncIterator[bytes]:
        """Who follows goes on with the next start of the pod, until it has ended for good."""
        folder = self._folder(pod.metadata.uid)
        part = self._part(pod, options)

        def over() -> bool:
            return options.previous or self.has_ended(folder.uid)

        try:
            async for piece in log_file.read(folder.log, options, over, *part):
                yield piece
        except FileNotFoundError:
            raise Conflict(_no_log(pod, options.previous)) from None

    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        try:
            start = log_file.start(self._folder(pod.metadata.uid).log, options, *self._part(pod, options))
        except FileNotFoundError:
            raise Conflict(_no_log(pod, options.previous)) from None
        return Log(self.logs(pod, dataclasses.replace(options, offset=start)), start)

    def _part(self, pod: Pod, options: LogOptions) -> tuple[int, int | None]:
        """From where to where in its log a pod's last attempt is, or the one before; `Conflict` when there is none."""
        folder = self._folder(pod.metadata.uid)
        process = folder.process()
        # The log may be there a moment before its process is: not yet, then.
        if process is None or (options.previous and process.previous_start is None):
            raise Conflict(_no_log(pod, options.previous))
        return (process.previous_start or 0, process.log_start) if options.previous else (process.log_start, None)

    async def exec(self, pod: Pod, command: Sequence[str], *, tty: bool, size: TerminalSize) -> ExecProcess:
        folder = self._folder(pod.metadata.uid)
        process = folder.process()
        if process is None or not process.supervised:
            raise Conflict(f"pod {pod.metadata.name} does not run: {why_not_running(pod)}")
        if not command:
            raise Conflict("no command was given")
        env = {"TERM": os.environ.get("TERM", "xterm-256color")} if tty else {}
        wish: Json = {"pid": process.pid, "argv": list(command), "tty": tty, "env": env}
        wish |= {"rows": size.rows, "columns": size.columns}
        return await start_exec([*_LAUNCHER, "exec", str(folder.spec_file)], _LAUNCHER_ENV, wish)

    async def connect(self, pod: Pod, port: int) -> PortConnection:
        """Pods share the machine's network, so it is looked up whose the port is: a pod is no way to others' ports."""
        if pod.metadata.uid not in self._watched:
            raise Conflict(f"pod {pod.metadata.name} does not run: {why_not_running(pod)}")
        addresses = await asyncio.to_thread(self._listening, pod.metadata.uid, port)
        if not addresses:
            raise Conflict(f"nothing in pod {pod.metadata.name} listens on port {port}")
        return await connect_port(addresses, port)

    def _listening(self, uid: str, port: int) -> list[str]:
        listeners = ports.listeners(port)
        mine = self.owners(list(syscalls.pids())) if listeners else {}
        held = {inode for pid, owner in mine.items() if owner == uid for inode in ports.sockets(pid)}
        return [address for inode, address in listeners.items() if inode in held]


# The launcher imports nothing but the standard library and its own package, so it needs no site packages.
_LAUNCHER_ENV = {"PYTHONPATH": launch_spec.PACKAGE_PARENT, "PATH": os.defpath}
_LAUNCHER = [sys.executable, "-S", "-s", "-m", "aliquot.backends.local.runtimes.launcher"]


def can_isolate() -> bool:
    """Whether we are root on a machine that lets us make namespaces. Tried, in a child, not guessed."""
    if os.geteuid() != 0:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.unshare(
                syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWPID
            )
            syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _raise_open_files() -> int:
    """One open file per running pod: take what the machine allows. Gives the limit that jobs get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def _owner(pid: int, inits: Mapping[int, str], spaces: Mapping[str, str]) -> str:
    """By its PID namespace, or that of an ancestor: a process cannot get rid of the first process of its namespace.

    The mark in its environment, which anybody can write, is believed only of pods that have no namespace.
    """
    place = pid
    while place > 1:
        if uid := inits.get(place) or spaces.get(syscalls.pid_namespace(place)):
            return uid
        place = syscalls.parent(place)
    uid = syscalls.variable(pid, f"{launch_spec.POD_VARIABLE}=".encode())
    return uid if uid in inits.values() and uid not in spaces.values() else ""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reason(code: int) -> str:
    return "ContainerCannotRun" if code in (126, 127) else "CreateContainerError"


def _no_log(pod: Pod, previous: bool) -> str:
    if previous:
        return f"pod {pod.metadata.name} was not started before"
    return f"pod {pod.metadata.name} has no log: {pod.status.message or why_not_running(pod)}"
