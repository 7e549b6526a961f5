"""Runs pods as processes of this machine, without a container engine.

When the platform runs as root, each pod has its own root file system, processes and host name, and each project its own
uid (sandbox.py). When a user runs the platform, a pod is that user's process in a session of its own, without further
isolation.

The state of a pod is on disk and in the kernel, never only here: a running pod is known by pid *and* start time, its
end by a file that its supervisor wrote, its output by its log. So this object can be dropped at any moment, and the
next one carries on. Nothing limits how much a pod writes into its folder, as on any machine without quotas; a full
disk stops writes and does not damage stored data.
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
_MAX_LAUNCHERS = 4  # in parallel: each needs mostly CPU
_LAUNCH_SECONDS = 30.0
# The pause before each further try, when a launcher or the forkserver was killed: 10 tries in about 4 seconds.
_RETRY_SECONDS = tuple(min(0.02 * 2**n, 1.0) for n in range(9))
_POLL_SECONDS = 0.02
_LOG_SECONDS = 1.0
_FAST_LOG_SECONDS = 0.1  # while a log grows fast
_COLLECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LogLimits:
    """At most `chunks` times `chunk` bytes are kept of a log."""

    chunk: int = 10 << 20
    chunks: int = 5


class ProcessRuntime:
    """See aliquot.backends.local.runtime.Runtime and aliquot.streams.Streams. `run` must run in the background."""

    def __init__(
        self,
        data: Path,
        *,
        isolated: bool | None = None,
        host_paths: Sequence[str] = (),
        log_limits: LogLimits = LogLimits(),  # noqa: B008  # frozen
        control_groups: Cgroups | None = None,
        cgroup_limiter: CgroupLimiter | None = None,
    ) -> None:
        """`cgroup_limiter` limits the GPU memory of control groups, where the driver can."""
        self._data = data.resolve()
        self._root = self._data / "pods"
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._host_paths = tuple(host_paths)
        self._log_limits = log_limits
        self._isolated = can_isolate() if isolated is None else isolated
        self._cgroups = control_groups or Cgroups()
        self._pod_cgroups = PodCgroups(self._cgroups, cgroup_limiter)
        self._uids = ProjectUids(self._data / "uids.json")
        self._checkpoints = Checkpoints(self._data / "checkpoints")
        self._open_files = _raise_open_files()
        self._launch_slots = asyncio.Semaphore(_MAX_LAUNCHERS)
        self._forkserver = Forkserver([*_LAUNCHER, "serve"], _LAUNCHER_ENV)
        self._log_trimmers: dict[str, LogTrimmer] = {}
        self._save_watchers: dict[str, preemption_files.SaveWatcher] = {}
        self._watched: dict[str, int] = {}  # pidfd of the supervisor, by uid
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_end: Callable[[str, Ended], None] = lambda uid, ended: None
        self.on_saved: Callable[[str, float], None] = lambda uid, at: None
        self.has_ended: Callable[[str], bool] = lambda uid: False  # not known, so log followers wait
        self.isolation = self._describe_isolation()

    def _describe_isolation(self) -> str:
        if self._isolated:
            return (
                "each project's jobs run under a uid of their own, in namespaces of their own, without sight of the "
                f"data folder or of other projects; {self._cgroups.summary}"
            )
        reason = "the platform was started by a user"
        if not os.geteuid():
            reason = "this machine does not let us make namespaces"
        return (
            f"jobs are not kept apart from each other or from the platform's data, because {reason}; "
            f"{self._cgroups.summary}"
        )

    @property
    def cgroup_version(self) -> int:
        """The version of control groups that every pod can have, for a driver that limits them; 0: not every pod."""
        return 2 if self._isolated and self._cgroups.leaf("any") else 0

    # --- lifecycle of a pod

    def recover_pods(self) -> list[RecoveredPod]:
        recovered = []
        for folder in folders(self._root):
            assignment = folder.assignment()
            if assignment is None:
                folder.remove()  # the launch spec was never written, so nothing was ever started
                continue
            process = folder.process()
            recovered.append(RecoveredPod(assignment, process.attempt if process else 0))
        return recovered

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
        if result := await self.resume(launch.assignment.uid, launch.attempt):
            return result
        try:
            await asyncio.to_thread(self._write_spec, launch, folder)
        except OSError as exc:
            raise CannotStart("CreateContainerError", f"cannot make its folder: {exc.strerror or exc}") from exc
        await asyncio.to_thread(self._pod_cgroups.set_gpu_limits, folder)
        for _ in range(int(_LAUNCH_SECONDS / _POLL_SECONDS)):
            answer = await self._launch(folder)
            if "error" in answer:
                raise CannotStart(
                    answer.get("reason") or _start_failure_reason(answer["code"]), answer["error"], answer["code"]
                )
            if result := await self.resume(launch.assignment.uid, launch.attempt):
                return result
            # A launcher of the previous platform is still at work: it finishes, or its end releases the lock.
            await asyncio.sleep(_POLL_SECONDS)
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
        except OSError as exc:  # for example a full disk; the pod gets its TERM all the same
            log.warning("preemption notice not written", pod=uid, error=str(exc))

    async def remove(self, uid: str) -> None:
        folder = self._folder(uid)
        process = folder.process()
        if process is not None:
            while process.supervised:
                self._kill(uid, process)
                await asyncio.sleep(_POLL_SECONDS)
            await self._clear(folder, process)
        self._forget(uid)
        # Before the folder, which alone has their paths.
        await asyncio.to_thread(self._pod_cgroups.remove, folder)
        await asyncio.to_thread(folder.remove)

    def checkpointed_workloads(self) -> list[tuple[str, str]]:
        return self._checkpoints.all()

    async def remove_checkpoints(self, namespace: str, workload: str) -> None:
        await asyncio.to_thread(self._checkpoints.remove, namespace, workload)

    async def run(self) -> None:
        """Maintain logs, report saved work and collect ended pods, until cancelled. Pods run on without us."""
        self._forkserver.open()
        try:
            while True:
                growing_fast = [trimmer.update() for trimmer in list(self._log_trimmers.values())]
                self._report_saves(time.monotonic())
                await asyncio.sleep(_FAST_LOG_SECONDS if any(growing_fast) else _LOG_SECONDS)
        finally:
            for uid in list(self._watched):
                self._unwatch(uid)
            for task in self._tasks:
                task.cancel()
            self._forkserver.close()

    # --- starting

    def _folder(self, uid: str) -> PodFolder:
        return PodFolder(self._root / os.path.basename(uid))

    def _write_spec(self, launch: Launch, folder: PodFolder) -> None:
        assignment = launch.assignment
        owner = self._uids.uid(assignment.namespace) if self._isolated else None
        host_name = launch_spec.host_name(assignment.name)
        folder.prepare(owner, launch_spec.bashrc(launch, folder, self._isolated), host_name)
        injected = launch_spec.inject(launch.injection, folder)
        checkpoints = None
        if assignment.workload:
            checkpoints = self._checkpoints.folder(assignment.namespace, assignment.workload, owner)
        if owner is not None:
            specific = launch_spec.isolated_spec(launch, folder, self._data, owner, self._host_paths, checkpoints)
        else:
            specific = launch_spec.plain_spec(launch, folder, self._data, self._host_paths, checkpoints)
        common: Json = {
            "folder": str(folder.path),
            "attempt": launch.attempt,
            "hostname": host_name,
            "argv": list(launch.argv),
            "devices": list(launch.injection.devices),
            "injected": injected,
            "loads": LIBRARY if launch.injection.requires_library else "",
            "hostIPC": launch.host_ipc,
            "files": self._open_files,
            "cgroups": self._pod_cgroups.spec(launch),
            "gpuLimits": [asdict(limit) for limit in launch.injection.cgroup_limits],
        }
        folder.write_spec(common | specific, assignment)

    async def _launch(self, folder: PodFolder) -> Json:
        """The launcher's answer. If a launcher was killed, another one continues from the state in the folder."""
        pauses = iter(_RETRY_SECONDS)
        while True:
            try:
                async with self._launch_slots:
                    return await self._forkserver.start(folder.spec_file, _LAUNCH_SECONDS)
            except LauncherFailed as exc:
                pause = next(pauses, None) if isinstance(exc, LauncherGone) else None
                if pause is None:
                    raise CannotStart("CreateContainerError", "the launcher did not finish") from exc
                log.warning("launcher ended without an answer; starting another", pod=folder.uid)
            await asyncio.sleep(pause)

    # --- ending

    def _watch(self, folder: PodFolder, process: Process) -> bool:
        """Watch for the end of the supervisor. False when it has ended already."""
        if folder.uid in self._watched:
            return True
        try:
            handle = os.pidfd_open(process.pid)
        except OSError:
            return False
        if not process.supervised:  # checked after opening: the pidfd stays with this process
            os.close(handle)
            return False
        self._watched[folder.uid] = handle
        self._log_trimmers[folder.uid] = LogTrimmer(folder.log, self._log_limits.chunk, self._log_limits.chunks)
        self._save_watchers[folder.uid] = preemption_files.SaveWatcher(folder.preemption_dir)
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
            os.waitpid(process.pid, os.WNOHANG)  # our child only when we are process 1 of a container
        self._spawn(self._finish(folder, process))

    async def _finish(self, folder: PodFolder, process: Process) -> None:
        await self._clear(folder, process)
        self._forget(folder.uid)
        self.on_end(folder.uid, self._ended(folder, process))

    async def _clear(self, folder: PodFolder, process: Process) -> None:
        """Kill processes that the command left behind, and wait until all output is in the log."""
        deadline = time.monotonic() + _COLLECT_SECONDS
        isolated = (folder.spec() or {}).get("isolated", False)
        while time.monotonic() < deadline:
            left = [] if isolated else self._pids_by_variable(folder.uid)
            for pid in left:
                _send(pid, signal.SIGKILL)
            if not left and process.collected:
                return
            await asyncio.sleep(_POLL_SECONDS / 4)

    def _report_saves(self, now: float) -> None:
        for uid, watcher in list(self._save_watchers.items()):
            if (saved := watcher.poll(now)) is not None:
                self.on_saved(uid, saved)

    def _forget(self, uid: str) -> None:
        self._unwatch(uid)
        self._save_watchers.pop(uid, None)
        trimmer = self._log_trimmers.pop(uid, None)
        if trimmer is not None:
            trimmer.update()

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

    def _pids_by_variable(self, uid: str) -> list[int]:
        """Processes that carry the pod's uid in their environment."""
        return syscalls.pids_with_variable(f"{launch_spec.POD_VARIABLE}={uid}".encode())

    def _kill(self, uid: str, process: Process) -> None:
        """In an isolated pod the supervisor is process 1: the kernel kills all others with it."""
        _send(process.pid, signal.SIGKILL)
        if not (self._folder(uid).spec() or {}).get("isolated", False):
            for pid in self._pids_by_variable(uid):
                _send(pid, signal.SIGKILL)

    async def _terminate(self, process: Process) -> None:
        """Send TERM to the command itself, which is the supervisor's oldest child.

        At first it does not exist yet. Then it is still a fork of the supervisor's shell, which would swallow the
        signal: it has the same command line then.
        """
        while process.supervised:
            children = syscalls.children(process.pid)
            if children and syscalls.command_line(children[0]) != syscalls.command_line(process.pid):
                _send(children[0], signal.SIGTERM)
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- owners of processes

    def owners(self, pids: Sequence[int]) -> dict[int, str]:
        """The pod uid of each process that belongs to a pod, also of one that has entered namespaces of its own."""
        supervisors, namespaces = self._running()
        owners = {}
        for pid in pids:
            if uid := _owner(pid, supervisors, namespaces):
                owners[pid] = uid
        return owners

    def _running(self) -> tuple[dict[int, str], dict[str, str]]:
        """Pod uids by pid of the supervisor, and those of isolated pods by PID namespace."""
        supervisors, namespaces = {}, {}
        for uid in self._watched:
            folder = self._folder(uid)
            process = folder.process()
            if process is not None and process.supervised:
                supervisors[process.pid] = uid
                if (folder.spec() or {}).get("isolated", False):
                    namespaces[syscalls.pid_namespace(process.pid)] = uid
        return supervisors, namespaces

    def program(self, pid: int) -> str:
        """The name of a process."""
        return syscalls.program(pid)

    def kill_process(self, uid: str, pid: int) -> bool:
        """Kill one process of a pod; False when it is not the pod's, or has ended."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            # Checked after opening: the pidfd stays with this process.
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
        """Change what the driver grants a running pod; False when it was not changed, and the log says why."""
        return self._pod_cgroups.change_gpu_limit(self._folder(uid), limit)

    # --- logs, exec and port-forward

    async def logs(self, pod: Pod, options: LogOptions) -> AsyncIterator[bytes]:
        """A follower goes on with the pod's next attempt, until the pod has ended for good."""
        folder = self._folder(pod.metadata.uid)
        begin, end = self._log_range(pod, options)

        def ended() -> bool:
            return options.previous or self.has_ended(folder.uid)

        try:
            async for chunk in log_file.read(folder.log, options, ended, begin, end):
                yield chunk
        except FileNotFoundError:
            raise Conflict(_no_log(pod, options.previous)) from None

    async def open_log(self, pod: Pod, options: LogOptions) -> Log:
        try:
            start = log_file.start(self._folder(pod.metadata.uid).log, options, *self._log_range(pod, options))
        except FileNotFoundError:
            raise Conflict(_no_log(pod, options.previous)) from None
        return Log(self.logs(pod, dataclasses.replace(options, offset=start)), start)

    def _log_range(self, pod: Pod, options: LogOptions) -> tuple[int, int | None]:
        """The offsets of the pod's last attempt in its log, or of the one before; `Conflict` when there is none."""
        folder = self._folder(pod.metadata.uid)
        process = folder.process()
        # The log exists a moment before the process is recorded.
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
        request: Json = {"pid": process.pid, "argv": list(command), "tty": tty, "env": env}
        request |= {"rows": size.rows, "columns": size.columns}
        return await start_exec([*_LAUNCHER, "exec", str(folder.spec_file)], _LAUNCHER_ENV, request)

    async def connect(self, pod: Pod, port: int) -> PortConnection:
        """Pods share the machine's network, so the port must belong to the pod: others' ports cannot be reached."""
        if pod.metadata.uid not in self._watched:
            raise Conflict(f"pod {pod.metadata.name} does not run: {why_not_running(pod)}")
        addresses = await asyncio.to_thread(self._listening, pod.metadata.uid, port)
        if not addresses:
            raise Conflict(f"nothing in pod {pod.metadata.name} listens on port {port}")
        return await connect_port(addresses, port)

    def _listening(self, uid: str, port: int) -> list[str]:
        listeners = ports.listeners(port)
        owners = self.owners(list(syscalls.pids())) if listeners else {}
        inodes = {inode for pid, owner in owners.items() if owner == uid for inode in ports.sockets(pid)}
        return [address for inode, address in listeners.items() if inode in inodes]


# The launcher imports only the standard library and its own package, so it needs no site packages.
_LAUNCHER_ENV = {"PYTHONPATH": launch_spec.PACKAGE_PARENT, "PATH": os.defpath}
_LAUNCHER = [sys.executable, "-S", "-s", "-m", "aliquot.backends.local.runtimes.launcher"]


def can_isolate() -> bool:
    """Whether we are root on a machine that lets us create namespaces. Tried in a child process, not guessed."""
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
    """Raise our limit of open files: each running pod needs one. Returns the previous limit, which jobs get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def _owner(pid: int, supervisors: Mapping[int, str], namespaces: Mapping[str, str]) -> str:
    """Found by the PID namespace of the process or of an ancestor: it cannot leave process 1 of its namespace.

    The variable in its environment, which any process can set, counts only for pods without a namespace.
    """
    ancestor = pid
    while ancestor > 1:
        if uid := supervisors.get(ancestor) or namespaces.get(syscalls.pid_namespace(ancestor)):
            return uid
        ancestor = syscalls.parent(ancestor)
    uid = syscalls.variable(pid, f"{launch_spec.POD_VARIABLE}=".encode())
    return uid if uid in supervisors.values() and uid not in namespaces.values() else ""


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _start_failure_reason(code: int) -> str:
    return "ContainerCannotRun" if code in (126, 127) else "CreateContainerError"


def _no_log(pod: Pod, previous: bool) -> str:
    if previous:
        return f"pod {pod.metadata.name} was not started before"
    return f"pod {pod.metadata.name} has no log: {pod.status.message or why_not_running(pod)}"
