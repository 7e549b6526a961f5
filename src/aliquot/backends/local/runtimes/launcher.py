"""Starts one pod, or one command in a pod, and is gone: `python -m aliquot.backends.local.runtimes.launcher`.

    serve         wait for orders to start pods, and fork a launcher for each (see starter.py)
    exec ORDERS   run one command in a pod

A process of its own, because what it does cannot be undone: it leaves namespaces and drops rights. What it leaves
behind for a pod is small, since hundreds of pods run at once:

    collector   `cat`, outside the pod: moves what the pod prints into its log file. It ends when the last process
                of the pod has, so nothing that was printed is lost, however the pod or the platform ends. A shell
                starts it again when it fails.
    supervisor  /bin/sh, process 1 of the pod: runs the command, writes its exit status to a file that it was handed
                open, and holds the lock of the pod's folder. Lock held means alive; the kernel lets go, not we.

The order makes a second copy impossible. Under the lock: look whether this attempt was started already; make both
processes, the supervisor waiting; write their numbers down; only then let the supervisor go. A kill anywhere before
that leaves a supervisor that sees its starter gone, and ends; a kill after it leaves the numbers on disk.

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

# Its own stderr is closed to words such as "Terminated"; the command's is not. No word of a user reaches the shell's
# parser: the command comes as arguments, its first one an absolute path (a bare name could be a built-in).
_SUPERVISOR = 'trap : HUP INT TERM; exec 5>&2 2>/dev/null; (exec "$@" 2>&5 3>&- 4>&- 5>&-); echo $? >&3'
# `cat` gives up when the disk is full. Its pipe must stay open then, or every pod that prints would die of it.
_COLLECTOR = "until cat; do sleep 1; done"
_OOM_SCORE = "500"  # when memory runs out, jobs go before the platform
_LONGEST_WORD = 32 * 4096  # the kernel's own limit
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotRun(Exception):
    def __init__(self, message: str, code: int, reason: str = "") -> None:
        super().__init__(message)
        self.message, self.code, self.reason = message, code, reason


def main(arguments: list[str]) -> int:
    os.umask(0o022)
    if arguments == ["serve"]:
        return serve(socket.socket(fileno=0))
    return execute(_orders(arguments[1]), json.loads(sys.stdin.buffer.readline()))


def _orders(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    # The platform raised its own limit of open files; jobs get the one it was started with.
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["files"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return spec


def serve(line: socket.socket) -> int:
    """Fork a launcher for each message (a path, and a socket for the answer), until the platform is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them; the kernel buries them
    while True:
        path, handles, *_ = socket.recv_fds(line, 4096, 1)
        if not path:
            return 0
        if os.fork() == 0:
            _serve_one(line, os.fsdecode(path), handles[0])
        os.close(handles[0])


def _serve_one(line: socket.socket, path: str, answers: int) -> NoReturn:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), line.detach())
        os.setsid()
        # If nobody waits, the platform is gone or has reported the start as failed: the pod must not start now.
        if _answer(answers, {"launcher": os.getpid()}):
            _answer(answers, start(_orders(path)))
    except Exception:  # noqa: BLE001  # the end of this process; whoever waits hears that nothing came
        sys.excepthook(*sys.exc_info())  # to the platform's log
    finally:
        os._exit(0)  # never back into the loop


def _answer(answers: int, words: dict[str, Any]) -> bool:
    """False when nobody waits for it any more."""
    try:
        os.write(answers, json.dumps(words).encode())
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
        os.fchown(writing, spec["uid"], spec["uid"])  # else nobody inside could open /dev/stdout
    collector, log_start = _collector(folder, reading, writing)
    os.close(reading)
    for cgroup in spec["cgroups"]:
        _join_cgroup(cgroup)
    exit_file = os.open(os.path.join(folder, f"exit.{attempt}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    told, tell = os.pipe()  # the supervisor says how far it came
    go, let_go = os.pipe()  # and waits for our word
    if spec["isolated"]:
        syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.close(let_go)
        _supervise(spec, go, tell, (writing, exit_file, lock))
    os.close(tell)
    os.close(writing)
    with os.fdopen(told, "rb") as answers:
        answer = json.loads(answers.read() or b'{"error": "the supervisor ended at once", "code": 128}')
    if "error" in answer:
        os.waitpid(pid, 0)
        return dict(answer)
    state = {"attempt": attempt, "pid": pid, "startTime": syscalls.start_time(pid), "collector": collector,
             "collectorStart": syscalls.start_time(collector), "started": time.time(),
             "logStart": log_start, "previousStart": before.get("logStart")}  # fmt: skip
    _write(os.path.join(folder, "state.json"), json.dumps(state))
    os.write(let_go, b"g")
    return state


def _write(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def _collector(folder: str, reading: int, writing: int) -> tuple[int, int]:
    """Starts `cat` at the end of the log; its process, and where it begins."""
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(log).st_size
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        os.chdir("/")  # so that it keeps no folder busy
        nothing = os.open("/dev/null", os.O_WRONLY)
        _become(["/bin/sh", "-c", _COLLECTOR, "aliquot-log"], {"PATH": os.defpath}, {0: reading, 1: log, 2: nothing})
    os.close(log)
    return pid, begin


def _join_cgroup(cgroup: dict[str, Any]) -> None:
    """Limits are a help where the machine allows them, and no reason not to start, unless they fence off a GPU."""
    try:
        os.makedirs(cgroup["path"], exist_ok=True)
        for name, value in cgroup["limits"].items():
            with contextlib.suppress(OSError):
                _into_group(cgroup, name, value)
        _into_group(cgroup, "cgroup.procs", "0")
    except OSError as exc:
        if cgroup.get("needed"):
            said = f"its GPU fraction cannot be enforced: {cgroup['path']}: {exc.strerror or exc}"
            raise CannotRun(said, 128, "GPULimitNotKept") from exc


def _into_group(cgroup: dict[str, Any], name: str, value: str) -> None:
    with open(os.path.join(cgroup["path"], name), "w", encoding="ascii") as file:
        file.write(value)


def _supervise(spec: dict[str, Any], go: int, tell: int, handed: tuple[int, int, int]) -> NoReturn:
    """In the child: become the supervisor, or say why not."""
    try:
        os.setsid()
        _forget_signals()
        _be_first_to_go()
        argv = _enter(spec)
        output, exit_file, lock = handed
        os.write(tell, b"{}")
        os.close(tell)
        if os.read(go, 1) != b"g":  # our starter died: nobody knows of us, so we must not run
            os._exit(1)
        nothing = os.open("/dev/null", os.O_RDONLY)
        _become(
            ["/bin/sh", "-c", _SUPERVISOR, "aliquot-pod", *argv],
            spec["env"],
            {0: nothing, 1: output, 2: output, 3: exit_file, 4: lock},
        )
    except (CannotRun, sandbox.MountRefused) as exc:
        _tell(tell, str(exc), getattr(exc, "code", 128), getattr(exc, "reason", ""))
    except OSError as exc:
        _tell(tell, f"cannot start: {exc.strerror or exc}", 128)
    finally:
        os._exit(1)  # never back into the code of our parent, whatever happened


def _tell(tell: int, message: str, code: int, reason: str = "") -> None:
    with contextlib.suppress(OSError):
        os.write(tell, json.dumps({"error": message, "code": code, "reason": reason}).encode())


def _be_first_to_go() -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)


def _enter(spec: dict[str, Any]) -> list[str]:
    """Go where the pod is, with its rights, and find its program there."""
    if spec["isolated"]:
        sandbox.enter(spec)
        with contextlib.suppress(OSError):
            os.makedirs(spec["cwd"], exist_ok=True)
        sandbox.become_root_inside(spec["uid"])
        if spec["loads"]:
            _check_loaded(spec["loads"])
    _check_words([*spec["argv"], *(f"{name}={value}" for name, value in spec["env"].items())])
    _change_folder(spec["cwd"])
    return [find_program(spec["argv"][0], spec["env"].get("PATH", os.defpath)), *spec["argv"][1:]]


def _check_loaded(library: str) -> None:
    """Whether programs of the pod load the library that share_dirs its GPUs; else they would run without a limit.

    Tried, with a program of the pod: the loader passes over a library that is too new for it or not there, with
    nothing but a warning.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        nothing = os.open("/dev/null", os.O_RDWR)
        _become(["cat", "/proc/self/maps"], {"PATH": os.defpath}, {0: nothing, 1: writing, 2: nothing})
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        maps = answer.read()
    os.waitpid(pid, 0)
    if os.fsencode(library) not in maps:
        said = f"its GPU fraction cannot be enforced: programs do not load {library}"
        raise CannotRun(said, 128, "GPUShareNotLoaded")


def _check_words(words: list[str]) -> None:
    """What the kernel would refuse when it is too late to say so."""
    for word in words:
        try:
            size = len(os.fsencode(word))
        except UnicodeEncodeError:
            size = -1
        if size < 0 or "\0" in word:
            raise CannotRun(f"not text: {word[:60]!r}", _NOT_EXECUTABLE)
        if size >= _LONGEST_WORD:
            raise CannotRun(f"too long: an argument or variable of {size} bytes", _NOT_EXECUTABLE)


def _change_folder(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise CannotRun(f"cannot start in {path}: {reason}", _NOT_EXECUTABLE) from None


def find_program(name: str, path: str) -> str:
    """Where a program is; `CannotRun` in a shell's words, with a shell's exit status."""
    places = [name] if "/" in name else [os.path.join(place or ".", name) for place in path.split(os.pathsep)]
    files = [os.path.abspath(place) for place in places if name and os.path.isfile(place)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if files:
        raise CannotRun(f"permission denied: {name}", _NOT_EXECUTABLE)
    if name and any(os.path.isdir(place) for place in places) and "/" in name:
        raise CannotRun(f"is a folder: {name}", _NOT_EXECUTABLE)
    raise CannotRun(f"command not found: {name or repr(name)}", _NOT_FOUND)


def _become(argv: list[str], env: dict[str, str], files: dict[int, int]) -> NoReturn:
    """Replace this process, with just these files open. Never returns."""
    # First out of the way of the numbers that are wanted, then into place.
    copies = {wanted: fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 32) for wanted, handle in files.items()}
    for wanted, handle in copies.items():
        os.dup2(handle, wanted)
    os.closerange(max(files) + 1, 1024)
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606  # no shell is wanted
    except OSError:
        os._exit(_NOT_FOUND)


# --- a command in a pod


def execute(spec: dict[str, Any], wish: dict[str, Any]) -> int:
    """Run a command beside the pod's own; our exit status is its. Standard input is the line to the platform.

    With a terminal, the terminal is opened *inside* the pod, so that programs there can find and reopen it; its other
    end is sent to the platform.
    """
    line = socket.socket(fileno=os.dup(0))
    try:
        for cgroup in spec["cgroups"]:
            _join_cgroup({**cgroup, "limits": {}})
        if spec["isolated"]:
            sandbox.join(wish["pid"])
        files = _terminal(line, wish) if wish["tty"] else _pipes(line)
    except CannotRun as exc:
        return _refuse(line, exc.message, 126)
    except OSError as exc:
        return _refuse(line, f"cannot enter the pod: {exc.strerror or exc}", 126)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _run_command(spec, wish, files, tell)
    os.close(tell)
    for handle in set(files.values()):
        os.close(handle)
    with os.fdopen(told, "rb") as answers:
        answer = json.loads(answers.read() or b"{}")
    if "error" in answer:
        os.waitpid(pid, 0)
        return _refuse(line, answer["error"], answer["code"])
    _pass_on_hang_up(pid)
    line.sendall(b'{"running": true}\n')
    return _wait(pid)


def _refuse(line: socket.socket, message: str, code: int) -> int:
    line.sendall(json.dumps({"error": message, "code": code}).encode() + b"\n")
    return code


def _terminal(line: socket.socket, wish: dict[str, Any]) -> dict[int, int]:
    platform, command = os.openpty()
    termios.tcsetwinsize(command, (wish["rows"], wish["columns"]))
    socket.send_fds(line, [b"t"], [platform])
    os.close(platform)
    return {0: command, 1: command, 2: command}


def _pipes(line: socket.socket) -> dict[int, int]:
    pairs = [os.pipe() for _ in range(3)]
    (input_reading, input_writing), (out_reading, out_writing), (error_reading, error_writing) = pairs
    socket.send_fds(line, [b"p"], [input_writing, out_reading, error_reading])
    for handle in (input_writing, out_reading, error_reading):
        os.close(handle)
    return {0: input_reading, 1: out_writing, 2: error_writing}


def _run_command(spec: dict[str, Any], wish: dict[str, Any], files: dict[int, int], tell: int) -> NoReturn:
    try:
        os.setsid()
        _forget_signals()
        if wish["tty"]:
            fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
        _be_first_to_go()
        _change_folder(spec["cwd"])
        env = {**spec["env"], **wish["env"]}
        _check_words(wish["argv"])
        program = find_program(wish["argv"][0], env.get("PATH", os.defpath))
        os.close(tell)
        _become([program, *wish["argv"][1:]], env, files)
    except CannotRun as exc:
        _tell(tell, exc.message, exc.code)
    except OSError as exc:
        _tell(tell, f"cannot run: {exc.strerror or exc}", _NOT_EXECUTABLE)
    finally:
        os._exit(1)


def _forget_signals() -> None:
    """Jobs would inherit what is ignored here: SIGPIPE by Python, SIGHUP by a platform that was started with nohup."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _pass_on_hang_up(pid: int) -> None:
    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    signal.signal(signal.SIGHUP, pass_on)


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
