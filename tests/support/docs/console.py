"""Runs the console blocks of a Markdown page and compares the output with the page.

A page may contain:

    ```console      `$ command`, then what it prints, as a terminal shows it (both streams); `> ` continues a command
    ```yaml         with a first line `# name.yaml`: the file of that name in the folder where the commands run
    make up         runs beside the rest from then on, as do `aliquot up` and `aliquot serve`; without a cluster it uses
                    the demo cluster, so that a machine with GPUs prints the same
    ^C              as the last line: the command runs while the next block runs, and is then interrupted
    logs -f ... ^C  the same, interrupted as soon as it has printed as many lines as the page shows
    you@pod:/x#     a prompt: the command has a terminal, and the text after the prompt is typed there
    /home/you       the reader's home folder
    127.0.0.1:7520  the server, whichever port the test uses

A command that only reads (READS) is repeated for a while until its output equals the page, because jobs take a moment
to start. A command must fail exactly when the page shows an error (FAILURE). Text that differs from run to run is
replaced on both sides before the comparison: see VARYING.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120  # for one command on a busy machine; usually it takes one
RETRY_SECONDS = 60  # seconds until the output must equal the page
INTERRUPT = "^C"
READS = re.compile(r"(runai|aliquot) (list|get|describe|logs|status|top|project list)\b|kubectl get\b")

# How the errors of our programs and of kubectl begin.
FAILURE = re.compile(r'error: |The \w+ "\S+" is invalid:')
# The prompt of a shell in a pod: root@build1-0-0:/workload# as root, another name and sign otherwise.
PROMPT = re.compile(r"^[\w.-]+@[\w-]+:\S*[#$] ?", re.M)
# Start-up lines without a fixed order, and a line that only machines without a GPU print.
UNORDERED, OPTIONAL = re.compile(r"\] (node registered|leading|webhook serving) "), "no NVIDIA GPU found"
# (pattern, replacement), in this order: everything in which two runs of the same page may differ.
VARYING = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uid>"),
        (r"\balq_[\w-]+", "<token>"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| [A-Z]{2,5}\b| [+-]\d\d\b)?", "<time>"),
        (r"\d+(us|ms|s)/step", "<pace>"),
        (r"(?<=loss: )\d+\.\d+|(?<=accuracy: )\d\.\d+|(?<=Wait seconds: )\d+\.\d+", "<figure>"),
        # With the padding of its column, so that 9s and 10s give the same text.
        (r"(?<![\w.-])\d+(s|m|h|d)\b(?!-)( {2,})?", "<age>"),
        (r"^[\w.-]+@([\w-]+:\S*)[#$]", r"<user>@\1#"),
        (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
        (r"(?<=identity=)\S+", "<process>"),
        (r"(?<=Isolation: ).+|(?<=\"isolation\": \")[^\"]+", "<depends on the machine>"),
        (r"(?<=pid )\d+|(?<=Process:   )\d+", "<pid>"),
        (r"(?<=resourceVersion\":\")\d+|(?<=resourceVersion\": \")\d+", "<version>"),
        (r"(?<=Version:   )\d[\w.]*|(?<=\"version\": \")\d[\w.]*|(?<=aliquot )\d+\.\d+[\w.]*", "<release>"),
    )
)


@dataclass(frozen=True)
class Step:
    """One command of a page and the output that the page shows."""

    command: str
    output: list[str]
    line: int

    @property
    def serves(self) -> bool:
        return re.match(r"(make up|aliquot up|aliquot serve)\b", self.command) is not None and not self.fails

    @property
    def interrupted(self) -> bool:
        return self.output[-1:] == [INTERRUPT]

    @property
    def follows(self) -> bool:
        return self.interrupted and re.match(r"(runai|aliquot) logs\b", self.command) is not None

    @property
    def typed(self) -> list[str]:
        """The input at the prompts of the page."""
        return [line[prompt.end() :] for line in self.output if (prompt := PROMPT.match(line))]

    @property
    def fails(self) -> bool:
        return any(FAILURE.match(line) for line in self.output)


@dataclass
class Page:
    path: Path
    blocks: list[list[Step]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Page:
    page, language, block, start = Page(path), "", [], 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.startswith("```"):
            block.append(line)
        elif language:
            _close(page, language, block, start)
            language = ""
        else:
            language, block, start = line[3:].strip() or "text", [], number
    return page


def _close(page: Page, language: str, block: list[str], start: int) -> None:
    if language == "console":
        page.blocks.append(_steps(block, start))
    elif language in ("yaml", "csv") and block and (name := re.fullmatch(rf"# (\S+\.{language})", block[0])):
        page.files[name[1]] = "\n".join(block) + "\n"


def _steps(block: list[str], start: int) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(block, start + 1):
        if line.startswith("$ "):
            steps.append(Step(line[2:], [], number))
        elif line.startswith("> ") and not steps[-1].output:
            steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", [], steps[-1].line)
        else:
            steps[-1].output.append(line.rstrip())
    return steps


class Background:
    """A command that runs in the background; a thread reads its output."""

    def __init__(self, step: Step, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.step = step
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            # `exec`, so that the signal reaches the command and not only its shell.
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_lines(self, count: int) -> None:
        """Waits until it has printed this many lines, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.lines) >= count or self.process.poll() is not None, SECONDS)

    def end(self, how: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class Terminal:
    """A command with a terminal of its own; input is typed after each prompt."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env={**environment, "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._seen = b""

    def converse(self, typed: list[str]) -> list[str]:
        """Types the input and returns the final screen."""
        try:
            for count, line in enumerate(typed, 1):
                self._read(lambda count=count: len(PROMPT.findall(self.screen)) >= count)  # type: ignore[misc]
                os.write(self._master, line.encode() + b"\r")
            self._read(lambda: False)
            status = self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._master)
        lines = [line.rstrip() for line in self.screen.splitlines()]
        return lines if status == 0 else [*lines, f"(exit status {status})"]

    @property
    def screen(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self._seen.decode())

    def _read(self, enough: Callable[[], bool]) -> None:
        """Reads until `enough`, or until the other end of the terminal is closed."""
        deadline = time.monotonic() + SECONDS
        while not enough():
            left = deadline - time.monotonic()
            ready = select.select([self._master], [], [], max(0, left))[0]
            assert ready, f"no more output: {self.screen}"
            try:
                data = os.read(self._master, 4096)
            except OSError:  # Linux raises this when the last program has closed it
                return
            if not data:
                return
            self._seen += data


class Tour:
    """Runs a page in a home folder of its own and returns the actual output."""

    def __init__(self, page: Page, home: Path, first_on_path: Path | None = None) -> None:
        self.page = page
        self.home = home
        self.folder = home / "tour"
        self.folder.mkdir(parents=True)
        for name, text in page.files.items():
            (self.folder / name).write_text(text)
        folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if first_on_path is not None:
            folders.insert(0, str(first_on_path))
        # Only these variables, so that settings of the person who runs the tests do not change the output.
        self._environment = {
            "PATH": os.pathsep.join(folders),
            "HOME": str(home),
            "LOGNAME": "you",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "100",
        }
        self._server: Background | None = None
        self._open: Background | None = None
        self._url = ""

    def run(self) -> list[tuple[str, list[str]]]:
        """Every command with its output, in the form of `expected`."""
        seen: list[tuple[str, list[str]]] = []
        try:
            for block in self.page.blocks:
                waiting = self._open
                seen += [(step.command, self._normalized(self._do(step))) for step in block]
                if waiting is not None:
                    index = [command for command, _ in seen].index(waiting.step.command)
                    seen[index] = (waiting.step.command, self._normalized(self._interrupt(waiting)))
        finally:
            if self._open is not None:
                self._open.end(signal.SIGTERM)
            if self._server is not None:
                if self._server.process.poll() is None:
                    # With its jobs, so that a page that fails half-way leaves nothing behind.
                    subprocess.run(["aliquot", "down"], env=self._environment, capture_output=True, check=True)
                self._server.end(signal.SIGTERM)
        return seen

    def expected(self) -> list[tuple[str, list[str]]]:
        steps = [step for block in self.page.blocks for step in block]
        return [
            (step.command, self._normalized(_in_order(step.output) if step.serves else step.output)) for step in steps
        ]

    def _do(self, step: Step) -> list[str]:
        if step.serves:
            return self._serve(step)
        command = step.command.replace("http://127.0.0.1:7520", self._url or "http://127.0.0.1:7520")
        if step.typed:
            return Terminal(command, self.folder, self._environment).converse(step.typed)
        if step.follows:
            return self._follow(Background(step, command, self.folder, self._environment))
        if step.interrupted:
            self._open = Background(step, command, self.folder, self._environment)
            # The watch prints the existing objects first, and later changes after them.
            self._open.wait_for_lines(1)
            return []
        deadline = time.monotonic() + RETRY_SECONDS
        lines = self._run(step, command)
        while (
            READS.match(command)
            and self._normalized(lines) != self._normalized(step.output)
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
            lines = self._run(step, command)
        return lines

    def _run(self, step: Step, command: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines = [line.rstrip() for line in done.stdout.splitlines()]
        if (done.returncode != 0) != step.fails:
            lines.append(f"(exit status {done.returncode})")
        return lines

    def _serve(self, step: Step) -> list[str]:
        # `make up` is `aliquot up` (test_docs_links checks that); any port is fine here.
        command = step.command.replace("make up", "aliquot up")
        if "--simulate" not in command and "--kubeconfig" not in command:
            command += " --simulate demo"
        if self._server is not None:
            self._server.end(signal.SIGTERM)  # it has ended; the page starts it again
        self._server = Background(step, f"{command} --port 0", self.folder, self._environment)
        self._server.wait_for_lines(len(_in_order(step.output)))
        lines = _in_order(self._server.lines)
        url = re.search(r"\] serving .*url=(\S+)", "\n".join(lines))
        assert url, f"{step.command}: {lines}"
        self._url = url[1]
        return lines

    def _follow(self, following: Background) -> list[str]:
        count = len(following.step.output) - 1
        following.wait_for_lines(count)
        status = following.end(signal.SIGINT)
        return [*following.lines[:count], INTERRUPT if status == 130 else f"(exit status {status})"]

    def _interrupt(self, waiting: Background) -> list[str]:
        waiting.wait_for_lines(len(waiting.step.output) - 1)
        status = waiting.end(signal.SIGINT)
        self._open = None
        # The command ends the line that ^C began on a terminal.
        lines = waiting.lines[:-1] if waiting.lines[-1:] == [""] else waiting.lines
        return [*lines, INTERRUPT if status == 130 else f"(exit status {status})"]

    def _normalized(self, lines: list[str]) -> list[str]:
        text = "\n".join(normalized(line.replace(str(self.home), "/home/you")) for line in lines)
        return text.rstrip().splitlines()


def _in_order(lines: list[str]) -> list[str]:
    """The start-up lines of a server in a comparable order."""
    kept = [line for line in lines if OPTIONAL not in line]
    return sorted(kept, key=lambda line: (True, normalized(line)) if UNORDERED.search(line) else (False, ""))


def normalized(line: str) -> str:
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line
