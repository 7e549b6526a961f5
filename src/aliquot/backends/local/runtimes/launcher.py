"""Starts one pod, or one command in a pod, and ends: `python -m aliquot.backends.local.runtimes.launcher`.

    serve       wait for requests to start pods, and fork a launcher for each (see forkserver.py)
    exec SPEC   run one command in the pod with this launch spec

A process of its own, because what it does cannot be undone: it leaves namespaces and drops rights. The processes that
stay behind for a pod are small, since hundreds of pods run at once:

    collector   `cat`, outside the pod: copies the pod's output into its log file. It ends after the last process of
                the pod, so no output is lost, however the pod or the platform ends. A shell restarts it when it fails.
    supervisor  /bin/sh, process 1 of the pod: runs the command, writes its exit status to a file that it inherits
                open, and holds the lock of the pod's folder. Lock held means alive: the kernel releases it, not we.

The order of steps makes a second copy impossible. Under the lock: check whether this attempt was started already; fork
both processes, the supervisor waiting; write their pids to state.json; only then let the supervisor go on. If the
launcher is killed before that, the supervisor notices and ends; if it is killed later, the pids are on disk.

Everything is imported at the top: inside the pod our own modules may not exist.

The answer to a start is JSON: {"pid": ...}, {"held": true}, {"done": true} or {"error": ...}.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import termios
import time
from typing import Any, NoReturn

from aliquot.backends.local.runtimes import sandbox, syscalls

# The shell's own messages, such as "Terminated", are discarded; the command's stderr is not. No text of a user reaches
# the shell's parser: the command comes as arguments, the first one an absolute path (a bare name could be a built-in).
_SUPERVISOR = 'trap : HUP INT TERM; exec 5>&2 2>/dev/null; (exec "$@" 2>&5 3>&- 4>&- 5>&-); echo $? >&3'
# `cat` fails when the disk is full. Its pipe must stay open then, or every pod that prints would be killed by SIGPIPE.
_COLLECTOR = "until cat; do sleep 1; done"
_OOM_SCORE = "500"  # when memory runs out, the kernel kills jobs before the platform
_MAX_ARGUMENT_BYTES = 32 * 4096  # the kernel's limit
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotRun(Exception):
    def __init__(self, message: str, code: int, reason: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.reason = message, code, reason


def main(arguments: list[str]) -> int:
    os.umask(0o022)
    if arguments == ["serve"]:
        return serve(socket.socket(fileno=0))
    return execute(_read_spec(arguments[1]), json.loads(sys.stdin.buffer.readline()))


def _read_spec(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    # The platform raised its own limit of open files; jobs get the limit that it was started with.
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["files"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return spec


def serve(requests: socket.socket) -> int:
    """Fork a launcher for each request (a path, and a socket for the answer), until the platform ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the launchers
    while True:
        path, handles, *_ = socket.recv_fds(requests, 4096, 1)
        if not path:
            return 0
        if os.fork() == 0:
            _serve_request(requests, os.fsdecode(path), handles[0])
        os.close(handles[0])


def _serve_request(requests: socket.socket, path: str, answers: int) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), requests.detach())
        os.setsid()
        # If nothing reads the answer, the platform is gone or has reported the start as failed: the pod must not start.
        if _answer(answers, {"launcher": os.getpid()}):
            _answer(answers, start(_read_spec(path)))
    except Exception:  # noqa: BLE001  # this process ends; the platform reads the end of the socket
        sys.excepthook(*sys.exc_info())  # to the platform's log
    finally:
        os._exit(0)  # never back into the loop


def _answer(answers: int, message: dict[str, Any]) -> bool:
    """False when the platform no longer waits for it."""
    try:
        os.write(answers, json.dumps(message).encode())
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


# --- a pod


def start(spec: dict[str, Any]) -> dict[str, Any]:
    folder = spec["folder"]
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return {"held": True}
    before = _last_start(folder)
    if before and before["attempt"] >= spec["attempt"]:
        return {"done": True}
    try:
        return _start(spec, lock, before)
    except (CannotRun, sandbox.MountRefused) as exc:
        return {"error": str(exc), "code": getattr(exc, "code", 128), "reason": getattr(exc, "reason", "")}
    except OSError as exc:
        return {"error": f"cannot start: {exc.strerror or exc}", "code": 128}


def _last_start(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


def _start(spec: dict[str, Any], lock: int, before: dict[str, Any]) -> dict[str, Any]:
    folder, attempt = spec["folder"], spec["attempt"]
    reading, writing = os.pipe()
    if spec["isolated"]:
        os.fchown(writing, spec["uid"], spec["uid"])  # or processes inside could not open /dev/stdout
    collector, log_start = _start_collector(folder, reading, writing)
    os.close(reading)
    for cgroup in spec["cgroups"]:
        _join_cgroup(cgroup)
    exit_file = os.open(os.path.join(folder, f"exit.{attempt}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    result_read, result_write = os.pipe()  # the supervisor reports that it is ready, or why it is not
    go_read, go_write = os.pipe()  # and waits until it may go on
    if spec["isolated"]:
        syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(result_read)
        os.close(go_write)
        _supervise(spec, go_read, result_write, (writing, exit_file, lock))
    os.close(result_write)
    os.close(writing)
    with os.fdopen(result_read, "rb") as answers:
        answer = json.loads(answers.read() or b'{"error": "the supervisor ended at once", "code": 128}')
    if "error" in answer:
        os.waitpid(pid, 0)
        return dict(answer)
    state = {"attempt": attempt, "pid": pid, "startTime": syscalls.start_time(pid), "collector": collector,
             "collectorStart": syscalls.start_time(collector), "started": time.time(),
             "logStart": log_start, "previousStart": before.get("logStart")}  # fmt: skip
    _write(os.path.join(folder, "state.json"), json.dumps(state))
    os.write(go_write, b"g")
    return state


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def _start_collector(folder: str, reading: int, writing: int) -> tuple[int, int]:
    """Start `cat` at the end of the log; its pid, and the offset at which it begins."""
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(log).st_size
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")  # so that it does not keep a folder busy
        null = os.open("/dev/null", os.O_WRONLY)
        _become(["/bin/sh", "-c", _COLLECTOR, "aliquot-log"], {"PATH": os.defpath}, {0: reading, 1: log, 2: null})
    os.close(log)
    return pid, begin


def _join_cgroup(cgroup: dict[str, Any]) -> None:
    """A limit that the machine does not allow does not keep a pod from starting, unless it enforces a GPU fraction."""
    try:
        os.makedirs(cgroup["path"], exist_ok=True)
        for name, value in cgroup["limits"].items():
            with contextlib.suppress(OSError):
                _write_control(cgroup, name, value)
        _write_control(cgroup, "cgroup.procs", "0")
    except OSError as exc:
        if cgroup.get("needed"):
            message = f"its GPU fraction cannot be enforced: {cgroup['path']}: {exc.strerror or exc}"
            raise CannotRun(message, 128, "GPULimitNotKept") from exc


def _write_control(cgroup: dict[str, Any], name: str, value: str) -> None:
    with open(os.path.join(cgroup["path"], name), "w", encoding="ascii") as file:
        file.write(value)


def _supervise(spec: dict[str, Any], go: int, result: int, inherited: tuple[int, int, int]) -> NoReturn:
    """In the child: become the supervisor, or report why not."""
    try:
        os.setsid()
        _reset_signals()
        _raise_oom_score()
        argv = _enter(spec)
        output, exit_file, lock = inherited
        os.write(result, b"{}")
        os.close(result)
        if os.read(go, 1) != b"g":  # the launcher died and our pid is not on disk, so we must not run
            os._exit(1)
        null = os.open("/dev/null", os.O_RDONLY)
        _become(
            ["/bin/sh", "-c", _SUPERVISOR, "aliquot-pod", *argv],
            spec["env"],
            {0: null, 1: output, 2: output, 3: exit_file, 4: lock},
        )
    except (CannotRun, sandbox.MountRefused) as exc:
        _report_error(result, str(exc), getattr(exc, "code", 128), getattr(exc, "reason", ""))
    except OSError as exc:
        _report_error(result, f"cannot start: {exc.strerror or exc}", 128)
    finally:
        os._exit(1)  # never return into the code of our parent


def _report_error(result: int, message: str, code: int, reason: str = "") -> None:
    with contextlib.suppress(OSError):
        os.write(result, json.dumps({"error": message, "code": code, "reason": reason}).encode())


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)


def _enter(spec: dict[str, Any]) -> list[str]:
    """Enter the pod's namespaces with its rights, and find its program there."""
    if spec["isolated"]:
        sandbox.enter(spec)
        with contextlib.suppress(OSError):
            os.makedirs(spec["cwd"], exist_ok=True)
        sandbox.become_root_inside(spec["uid"])
        if spec["loads"]:
            _check_library_loads(spec["loads"])
    _check_arguments([*spec["argv"], *(f"{name}={value}" for name, value in spec["env"].items())])
    _change_folder(spec["cwd"])
    return [find_program(spec["argv"][0], spec["env"].get("PATH", os.defpath)), *spec["argv"][1:]]


def _check_library_loads(library: str) -> None:
    """Check that programs of the pod load the sharing library; otherwise they would run without a limit.

    This is tried with a program of the pod: the dynamic loader skips a library that is missing, or too new for it, with
    no more than a warning.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        null = os.open("/dev/null", os.O_RDWR)
        _become(["cat", "/proc/self/maps"], {"PATH": os.defpath}, {0: null, 1: writing, 2: null})
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        maps = answer.read()
    os.waitpid(pid, 0)
    if os.fsencode(library) not in maps:
        message = f"its GPU fraction cannot be enforced: programs do not load {library}"
        raise CannotRun(message, 128, "GPUShareNotLoaded")


def _check_arguments(arguments: list[str]) -> None:
    """Refuse what the kernel would refuse later, when it can no longer be reported."""
    for argument in arguments:
        try:
            size = len(os.fsencode(argument))
        except UnicodeEncodeError:
            size = -1
        if size < 0 or "\0" in argument:
            raise CannotRun(f"not text: {argument[:60]!r}", _NOT_EXECUTABLE)
        if size >= _MAX_ARGUMENT_BYTES:
            raise CannotRun(f"too long: an argument or variable of {size} bytes", _NOT_EXECUTABLE)


def _change_folder(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise CannotRun(f"cannot start in {path}: {reason}", _NOT_EXECUTABLE) from None


def find_program(name: str, path: str) -> str:
    """The path of a program; `CannotRun` with a shell's message and exit status."""
    candidates = [name] if "/" in name else [os.path.join(folder or ".", name) for folder in path.split(os.pathsep)]
    files = [os.path.abspath(candidate) for candidate in candidates if name and os.path.isfile(candidate)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if files:
        raise CannotRun(f"permission denied: {name}", _NOT_EXECUTABLE)
    if name and any(os.path.isdir(candidate) for candidate in candidates) and "/" in name:
        raise CannotRun(f"is a folder: {name}", _NOT_EXECUTABLE)
    raise CannotRun(f"command not found: {name or repr(name)}", _NOT_FOUND)


def _become(argv: list[str], env: dict[str, str], files: dict[int, int]) -> NoReturn:
    """Replace this process, with just these files open: handle by descriptor number. Never returns."""
    # First to high numbers, so that no wanted number is overwritten before it is copied.
    copies = {number: fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 32) for number, handle in files.items()}
    for number, handle in copies.items():
        os.dup2(handle, number)
    os.closerange(max(files) + 1, 1024)
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell
    except OSError:
        os._exit(_NOT_FOUND)


# --- a command in a pod


def execute(spec: dict[str, Any], request: dict[str, Any]) -> int:
    """Run a command next to the pod's own; the exit status is the command's. Stdin is a socket to the platform.

    A terminal is opened *inside* the pod, so that programs there can find and reopen it; its other end is sent to the
    platform.
    """
    platform = socket.socket(fileno=os.dup(0))
    try:
        for cgroup in spec["cgroups"]:
            _join_cgroup({**cgroup, "limits": {}})
        if spec["isolated"]:
            sandbox.join(request["pid"])
        files = _terminal(platform, request) if request["tty"] else _pipes(platform)
    except CannotRun as exc:
        return _refuse(platform, exc.message, 126)
    except OSError as exc:
        return _refuse(platform, f"cannot enter the pod: {exc.strerror or exc}", 126)
    result_read, result_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(result_read)
        _run_command(spec, request, files, result_write)
    os.close(result_write)
    for handle in set(files.values()):
        os.close(handle)
    with os.fdopen(result_read, "rb") as answers:
        answer = json.loads(answers.read() or b"{}")
    if "error" in answer:
        os.waitpid(pid, 0)
        return _refuse(platform, answer["error"], answer["code"])
    _forward_hangup(pid)
    platform.sendall(b'{"running": true}\n')
    return _wait(pid)


def _refuse(platform: socket.socket, message: str, code: int) -> int:
    platform.sendall(json.dumps({"error": message, "code": code}).encode() + b"\n")
    return code


def _terminal(platform: socket.socket, request: dict[str, Any]) -> dict[int, int]:
    platform_end, command_end = os.openpty()
    termios.tcsetwinsize(command_end, (request["rows"], request["columns"]))
    socket.send_fds(platform, [b"t"], [platform_end])
    os.close(platform_end)
    return {0: command_end, 1: command_end, 2: command_end}


def _pipes(platform: socket.socket) -> dict[int, int]:
    pairs = [os.pipe() for _ in range(3)]
    (input_reading, input_writing), (out_reading, out_writing), (error_reading, error_writing) = pairs
    socket.send_fds(platform, [b"p"], [input_writing, out_reading, error_reading])
    for handle in (input_writing, out_reading, error_reading):
        os.close(handle)
    return {0: input_reading, 1: out_writing, 2: error_writing}


def _run_command(spec: dict[str, Any], request: dict[str, Any], files: dict[int, int], result: int) -> NoReturn:
    try:
        os.setsid()
        _reset_signals()
        if request["tty"]:
            fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
        _raise_oom_score()
        _change_folder(spec["cwd"])
        env = {**spec["env"], **request["env"]}
        _check_arguments(request["argv"])
        program = find_program(request["argv"][0], env.get("PATH", os.defpath))
        os.close(result)
        _become([program, *request["argv"][1:]], env, files)
    except CannotRun as exc:
        _report_error(result, exc.message, exc.code)
    except OSError as exc:
        _report_error(result, f"cannot run: {exc.strerror or exc}", _NOT_EXECUTABLE)
    finally:
        os._exit(1)


def _reset_signals() -> None:
    """Jobs would inherit ignored signals: Python ignores SIGPIPE, and a platform under nohup ignores SIGHUP."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _forward_hangup(pid: int) -> None:
    def forward(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGHUP, forward)


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
